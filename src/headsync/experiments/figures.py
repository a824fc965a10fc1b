"""Figures of a comparison: error rates and dev losses of all systems, and attention of some."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headsync.evaluation.figure_files import save_figure
from headsync.evaluation.plots import HALT, AttentionMaps, draw
from headsync.experiments.report import Table
from headsync.experiments.runs import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_systems(table: Table, path: Path) -> None:
    """A bar chart of error rates with intervals; r is beside each name."""
    save_figure(lambda: _systems(table), path)


def _systems(table: Table) -> Figure:
    from matplotlib.figure import Figure

    rows = list(csv.DictReader(table.csv().splitlines()))
    rates = [_number(row["errors"]) for row in rows]
    ends = [
        [_number(end) for end in row["95 %"].split(" to ")] if " to " in row["95 %"] else [0.0, 0.0] for row in rows
    ]
    reach = [[abs(rate - end[side]) for rate, end in zip(rates, ends, strict=True)] for side in (0, 1)]
    figure = Figure(figsize=(6.4, 0.8 + 0.3 * len(rows)), layout="constrained")
    axis = figure.subplots()
    axis.barh(range(len(rows)), rates, xerr=reach, color="#9db8d9", ecolor="0.4", height=0.65)
    axis.set_yticks(range(len(rows)), labels=[f"{row['system']}  (r {row['r']})" for row in rows])
    axis.invert_yaxis()
    axis.get_yticklabels()[-1].set_color(HALT)
    axis.set_xlim(0, max(1.0, *(1.05 * max(pair) for pair in ends)))
    axis.set_xlabel("errors, %")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(table.title, fontsize="medium")
    return figure


def draw_losses(curves: Mapping[str, Curve], title: str, path: Path) -> None:
    """The cross-entropy of each decoder on the development set against updates."""
    save_figure(lambda: _losses(curves, title), path)


def _losses(curves: Mapping[str, Curve], title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    for n, (name, curve) in enumerate(curves.items()):
        axis.plot(*zip(*curve, strict=True), label=name, linestyle=("-", "--", ":")[n // 10 % 3])
    axis.set_xlabel("updates")
    axis.set_ylabel("dev cross-entropy of the decoder")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    axis.set_title(title, fontsize="medium")
    return figure


def draw_heads(drawn: Sequence[AttentionMaps], folder: Path) -> list[Path]:
    """Draw the top layer of each system."""
    paths = [folder / f"heads-{attention.mechanism}.png" for attention in drawn]
    for attention, path in zip(drawn, paths, strict=True):
        draw(attention, path)
    return paths


def _number(text: str) -> float:
    found = re.search(r"-?\d+(\.\d+)?", text)
    return float(found[0]) if found else 0.0
