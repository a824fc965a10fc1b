from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headsync._atomic_write import naming
from headsync.cli import options
from headsync.cli.output import check_writable
from headsync.errors import DataError

plot = typer.Typer(help="Draw figures of a model.", no_args_is_help=True)


@plot.command()
def attention(
    model: options.ModelArgument,
    audio: Annotated[Path, typer.Argument(help="A recording.")],
    out: Annotated[Path, typer.Option(help="Figure to write, PNG or SVG.")] = Path("attention.png"),
    layer: Annotated[int | None, typer.Option(min=1, help="Decoder layer, from 1; the top layer by default.")] = None,
) -> None:
    """Draw the attention of each head over a recording, and where its steps halted."""
    from headsync.evaluation.plots import attention_of, draw
    from headsync.frontend.audio import stream_audio

    check_writable(out)
    found = attention_of(model, stream_audio(audio))
    if not found:
        raise DataError(f"{audio}: the model recognises no words in it; choose another recording.")
    for number, utterance in enumerate(found, 1):
        path = out if len(found) == 1 else out.with_stem(f"{out.stem}-{number}")
        with naming(path):
            draw(utterance, path, layer)
        typer.echo(f"{path}: {utterance.text}")
