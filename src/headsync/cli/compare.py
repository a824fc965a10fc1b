from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    plan: Annotated[Path, typer.Argument(help="Plan of the comparison, a TOML file.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Train and measure only this system; may be repeated.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="With --only: only this seed; may be repeated.")
    ] = None,
) -> None:
    """Train or reuse every system of a comparison, measure it, and write tables and figures."""
    from rich.console import Console

    from headsync.experiments.figures import draw_heads, draw_losses, draw_systems
    from headsync.experiments.plan import read_plan
    from headsync.experiments.report import report, write_tables
    from headsync.experiments.runs import Runs, dev_losses, run_only

    if seed and not only:
        raise typer.BadParameter("--seed requires --only.")
    comparison = read_plan(plan)
    runs = Runs(comparison, typer.echo)
    if only:
        run_only(comparison, runs, only, seed)
        return
    tables, drawn = report(comparison, runs)
    path = write_tables(tables, comparison.folder)
    pictures = draw_heads(drawn, comparison.folder)
    for table in tables[: len(comparison.tests)]:
        pictures.append(comparison.folder / f"{table.name}.png")
        draw_systems(table, pictures[-1])
    if curves := dev_losses(runs):
        pictures.append(comparison.folder / "dev-loss.png")
        draw_losses(curves, f"{comparison.title}: training", pictures[-1])
    Console(highlight=False, soft_wrap=True).print(path.read_text(encoding="utf-8"), markup=False)
    typer.echo(f"wrote {path}, a CSV file for each table, {', '.join(picture.name for picture in pictures)}")
