from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headsync.cli import options


def export(
    model: options.ModelArgument,
    out: Annotated[Path, typer.Argument(help="Folder to write; may be the model's own, which then gets the graphs.")],
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Compute the encoder with 8-bit integers; its weights take a quarter of float32."),
    ] = False,
    half: Annotated[bool, typer.Option("--half", help="16-bit weights: half of the size of float32.")] = False,
) -> None:
    """Write a model's graphs for ONNX Runtime, and compare them with PyTorch."""
    from headsync.engine.export import export_model
    from headsync.model_folder import find, load_folder

    agreement = export_model(load_folder(find(model)), out, int8, half)
    size_megabytes = sum(file.stat().st_size for file in out.glob("*") if file.is_file()) / 1e6
    typer.echo(
        f"{out}: {size_megabytes:.1f} MB; compared with PyTorch on random audio, {agreement.steps:.1%} of steps read "
        f"the same frames, and their outputs differ by at most {agreement.difference:.1e}"
    )
