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
    """Train a recogniser or a language model by a recipe; a run that was stopped goes on where it was."""
    from headsync.recipe import load_config

    if load_config(recipe, overrides or []).kind == "lm":
        from headsync.train.lm import train as run
    else:
        from headsync.train.loop import train as run

    run(recipe, overrides or [])
