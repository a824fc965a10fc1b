"""`headsync plot`: pictures of what a model does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headsync.cli.printing import refuse_unwritable
from headsync.errors import DataError

plot = typer.Typer(help="Draw what a model does.", no_args_is_help=True)


@plot.callback()
def _group() -> None:
    """Draw what a model does."""


@plot.command()
def attention(
    model: Annotated[str, typer.Argument(help="Name of a shipped model, or a model folder.")],
    audio: Annotated[Path, typer.Argument(help="A recording.")],
    out: Annotated[Path, typer.Option(help="The picture, PNG or SVG.")] = Path("attention.png"),
    layer: Annotated[int | None, typer.Option(min=1, help="Decoder layer, counted from 1; the top one.")] = None,
) -> None:
    """Draw what each head attended to while a recording was recognised, and where its steps halted."""
    from headsync.audio import stream_audio
    from headsync.measure.plot import attention_of, draw

    refuse_unwritable(out)
    found = attention_of(model, stream_audio(audio))
    if not found:
        raise DataError(f"{audio}: the model recognises nothing in it, so there is nothing to draw.")
    for number, utterance in enumerate(found, 1):
        path = out if len(found) == 1 else out.with_stem(f"{out.stem}-{number}")
        draw(utterance, path, layer)
        typer.echo(f"{path}: {utterance.text}")
