"""`headsync export`: a trained model in, a model that recognises without PyTorch out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[str, typer.Argument(help="Name of a shipped model, or a model folder.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; the model's own gets graphs alone.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights of 8 bits: a quarter of float32, and faster.")] = False,
    half: Annotated[bool, typer.Option("--half", help="Weights of 16 bits: half of float32.")] = False,
) -> None:
    """Write a model's graphs for ONNX Runtime, and check them against PyTorch."""
    from headsync.engine.export import export_model
    from headsync.folder import find, load_folder

    agreement = export_model(load_folder(find(model)), out, int8, half)
    size_megabytes = sum(file.stat().st_size for file in out.glob("*") if file.is_file()) / 1e6
    typer.echo(
        f"{out}: {size_megabytes:.1f} MB; against PyTorch on random sound, {agreement.steps:.1%} of steps read the "
        f"same frames, and there nothing differs by more than {agreement.difference:.1e}"
    )
