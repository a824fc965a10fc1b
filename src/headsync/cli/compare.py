"""`headsync compare`: systems trained and measured side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    plan: Annotated[Path, typer.Argument(help="What to compare, a TOML file.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only train and measure this system; may be repeated.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", help="With --only: only this seed.")] = None,
) -> None:
    """Train (or reuse) and measure every system of a comparison, and write its tables and pictures."""
    from rich.console import Console

    from headsync.compare.pictures import draw_heads, draw_systems
    from headsync.compare.plan import read_plan
    from headsync.compare.report import report
    from headsync.compare.runs import Runs, run_only
    from headsync.compare.tables import write_tables

    if seed and not only:
        raise typer.BadParameter("--seed is of systems that are named with --only.")
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
    Console(highlight=False, soft_wrap=True).print(path.read_text(encoding="utf-8"), markup=False)
    typer.echo(f"written: {path}, a CSV file for each table, {', '.join(picture.name for picture in pictures)}")
