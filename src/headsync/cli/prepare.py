"""`headsync prepare`: a corpus in, audio and manifests out; one command for each corpus."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from headsync.cli.progress import progress_bar

prepare = typer.Typer(help="Make audio and manifests to train on.", no_args_is_help=True)

Out = Annotated[Path, typer.Argument(help="Folder to write to.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed makes the same corpus.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads that listen.")]


@prepare.command()
def audiomnist(
    source: Annotated[Path, typer.Argument(help="The AudioMNIST folder.")],
    out: Out,
    speech: Annotated[Path | None, typer.Option(help="A Kaldi-style corpus of speech that is not digits.")] = None,
    foreign: Annotated[
        list[Path] | None,
        typer.Option(help="A manifest of further speech that is not digits, to train on; may be repeated."),
    ] = None,
    train: Annotated[int, typer.Option(min=1, help="Strings to train on.")] = 16_000,
    dev: Annotated[int, typer.Option(min=1, help="Strings to stop training by.")] = 400,
    test: Annotated[int, typer.Option(min=1, help="Strings to measure with.")] = 600,
    seed: Seed = 1,
    workers: Annotated[int, typer.Option(min=1, help="Processes at work; their number changes no byte.")] = 1,
) -> None:
    """Join single digits to connected strings, as they sound in the world."""
    from headsync.data.audiomnist import Counts
    from headsync.data.audiomnist import prepare as make

    strings = Counts(train=train, dev=dev, test=test)
    with progress_bar("strings") as progress:
        make(
            source, out, strings=strings, speech=speech, foreign=foreign or (), seed=seed, workers=workers,
            progress=progress,
        )  # fmt: skip
    typer.echo(f"{out}: ready.")


@prepare.command()
def toy(out: Out, seed: Seed = 1) -> None:
    """Make a tiny corpus of invented words, with no download and no recording."""
    from headsync.data.toy import prepare as make

    make(out, seed=seed)
    typer.echo(f"{out}: ready.")


@prepare.command()
def librispeech(
    source: Annotated[Path, typer.Argument(help="The folder LibriSpeech, with any of its parts.")],
    out: Out,
    workers: Threads = 1,
) -> None:
    """List the parts of LibriSpeech that are there."""
    _list("librispeech", source, out, workers)


@prepare.command()
def aishell1(
    source: Annotated[Path, typer.Argument(help="The folder data_aishell.")], out: Out, workers: Threads = 1
) -> None:
    """List train, dev and test of AIShell-1."""
    _list("aishell1", source, out, workers)


@prepare.command()
def wsj(
    source: Annotated[Path, typer.Argument(help="The folder with the discs of LDC93S6B and LDC94S13B.")],
    out: Out,
    workers: Threads = 1,
) -> None:
    """Decode and list si284, dev93 and eval92 of the Wall Street Journal corpus."""
    _list("wsj", source, out, workers)


@prepare.command()
def kaldi(
    source: Annotated[Path, typer.Argument(help="A Kaldi data folder, or a folder of them.")],
    out: Out,
    workers: Threads = 1,
) -> None:
    """List any corpus that has Kaldi's lists."""
    _list("kaldi", source, out, workers)


@prepare.command()
def table(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or TSV with a path and a text in each row.")],
    out: Out,
    workers: Threads = 1,
) -> None:
    """List recordings and texts of your own from a table."""
    _list("table", source, out, workers)


@prepare.command()
def shards(
    manifest: Annotated[Path, typer.Argument(help="A manifest that another of these commands has made.")],
    out: Out,
    size: Annotated[int, typer.Option(min=1, help="Utterances of a shard.")] = 1000,
) -> None:
    """Pack the recordings of a manifest into a few large files, in lhotse's tar form, for training on a cluster."""
    from headsync.data.shards import prepare as write

    with progress_bar("utterances") as progress:
        count = write(manifest, out, size=size, progress=progress)
    typer.echo(f"{out}: {count} shards are ready; name the folder as data.train of a recipe.")


def _list(corpus: str, source: Path, out: Path, workers: int) -> None:
    """Prepare by the module of that name, and say what there is and what was left out."""
    module = import_module(f"headsync.data.{corpus}")
    with progress_bar("utterances") as progress:
        report = module.prepare(source, out, workers=workers, progress=progress)
    typer.echo(report.summary())
    typer.echo(f"{out}: ready; report.json there names what was left out: {len(report.problems)}.")
