"""`headsync average`: stages of one training in, the model in their middle out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def average(
    models: Annotated[list[str], typer.Argument(help="Model folders of one training, two or more.")],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
) -> None:
    """Write the model whose weights are the mean of those of others."""
    from headsync.folder import find, load_folder
    from headsync.train.mean import mean_model

    if len(models) < 2:
        raise typer.BadParameter("a mean needs two models or more", param_hint="MODELS")
    mean = mean_model([load_folder(find(model)) for model in models], out)
    typer.echo(f"{mean.path}: the mean of {len(models)} models")
