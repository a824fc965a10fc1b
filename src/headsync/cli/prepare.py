"""`headsync prepare`: audio and manifests from a corpus; one command for each corpus."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from headsync.cli.output import progress_bar

prepare = typer.Typer(help="Prepare a corpus: write manifests, and audio where necessary.", no_args_is_help=True)

_Out = Annotated[Path, typer.Argument(help="Folder to write to.")]
_Seed = Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same corpus.")]
_Threads = Annotated[int, typer.Option(min=1, help="Number of threads.")]

_CORPORA = {  # without further options: descriptions of the corpus and of SOURCE
    "librispeech": (
        "LibriSpeech: every part found, such as train-clean-100 or dev-clean.",
        "The folder LibriSpeech, with any of its parts.",
    ),
    "harpervalley": (
        "Harper Valley: segments of telephone calls; train, dev and test with disjoint speakers.",
        "The folder gridspace-stanford-harper-valley, or its data folder.",
    ),
    "aishell1": ("AIShell-1: train, dev and test.", "The folder data_aishell."),
    "wsj": (
        "Wall Street Journal: decode and list si284, dev93 and eval92.",
        "The folder with the discs of LDC93S6B and LDC94S13B.",
    ),
    "kaldi": ("Any corpus with Kaldi lists.", "A Kaldi data folder, or a folder of them."),
    "table": ("A table of your own recordings and texts.", "CSV or TSV file with a path and a text in each row."),
}


@prepare.command()
def toy(out: _Out, seed: _Seed = 1) -> None:
    """Generate a tiny corpus of synthetic words; needs no download."""
    from headsync.corpora.toy import prepare as generate

    generate(out, seed=seed)
    typer.echo(f"{out}: ready.")


@prepare.command()
def commonvoice(
    source: Annotated[Path, typer.Argument(help="A release or its language folder, with *.tsv and clips/.")],
    out: _Out,
    ids: Annotated[
        list[Path] | None,
        typer.Option(help="A list of clip ids, one per line; the part is named after the file. May be repeated."),
    ] = None,
    validated: Annotated[
        bool, typer.Option("--validated", help="Train on all of validated.tsv instead of train.tsv.")
    ] = False,
    workers: _Threads = 1,
) -> None:
    """Common Voice: train, dev and test with disjoint speakers and sentences, or lists of clips."""
    _prepare("commonvoice", source, out, workers=workers, ids=ids or (), validated=validated)


@prepare.command()
def shards(
    manifest: Annotated[Path, typer.Argument(help="A manifest written by another prepare command.")],
    out: _Out,
    size: Annotated[int, typer.Option(min=1, help="Utterances per shard.")] = 1000,
) -> None:
    """Pack the recordings of a manifest into a few large files (lhotse shards) for training on a cluster."""
    from headsync.corpora.shards import prepare as write

    with progress_bar("utterances") as progress:
        count = write(manifest, out, size=size, progress=progress)
    typer.echo(f"{out}: {count} shards; use this folder as data.train of a recipe.")


def _add_command(corpus: str, description: str, source_help: str) -> None:
    def run(source: Path, out: _Out, workers: _Threads = 1) -> None:
        _prepare(corpus, source, out, workers=workers)

    run.__annotations__["source"] = Annotated[Path, typer.Argument(help=source_help)]
    prepare.command(corpus, help=description)(run)


for _corpus, _texts in _CORPORA.items():
    _add_command(_corpus, *_texts)


def _prepare(corpus: str, source: Path, out: Path, **options: Any) -> None:
    """Run the module of the corpus and print its report."""
    module = import_module(f"headsync.corpora.{corpus}")
    with progress_bar("utterances") as progress:
        report = module.prepare(source, out, progress=progress, **options)
    typer.echo(report.summary())
    typer.echo(f"{out}: ready; report.json lists all {len(report.problems)} problems.")
