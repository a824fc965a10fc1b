"""`headsync average`: the mean of several models of one training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def average(
    models: Annotated[list[str], typer.Argument(help="Two or more model folders of one training run.")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
) -> None:
    """Write a model whose weights are the mean of several models."""
    from headsync.model_folder import find, load_folder
    from headsync.training.average import mean_model

    if len(models) < 2:
        raise typer.BadParameter("name two or more models", param_hint="MODELS")
    mean = mean_model([load_folder(find(model)) for model in models], out)
    typer.echo(f"{mean.path}: the mean of {len(models)} models")
