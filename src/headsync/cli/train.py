from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a TOML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings that override the recipe.", metavar="[KEY=VALUE]...")
    ] = None,
) -> None:
    """Train a recogniser or a language model; a run that was stopped continues."""
    from headsync.training import train as run

    run(recipe, overrides or [])
