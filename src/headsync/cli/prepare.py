"""`headsync prepare`: a corpus in, audio and manifests out; one command for each corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headsync.cli.progress import progress_bar

prepare = typer.Typer(help="Make audio and manifests to train on.", no_args_is_help=True)

Out = Annotated[Path, typer.Argument(help="Folder to write to.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed makes the same corpus.")]


@prepare.command()
def audiomnist(
    source: Annotated[Path, typer.Argument(help="The AudioMNIST folder.")],
    out: Out,
    speech: Annotated[Path | None, typer.Option(help="A Kaldi-style corpus of speech that is not digits.")] = None,
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
        make(source, out, strings=strings, speech=speech, seed=seed, workers=workers, progress=progress)
    typer.echo(f"{out}: ready.")


@prepare.command()
def toy(out: Out, seed: Seed = 1) -> None:
    """Make a tiny corpus of invented words, with no download and no recording."""
    from headsync.data.toy import prepare as make

    make(out, seed=seed)
    typer.echo(f"{out}: ready.")
