"""`headsync train`: a recipe in, a model folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings in place of the recipe's.", metavar="[KEY=VALUE]...")
    ] = None,
) -> None:
    """Train a model by a recipe; a run that was stopped goes on where it was."""
    from headsync.train.loop import train as run

    run(recipe, overrides or [])
