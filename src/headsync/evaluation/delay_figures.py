"""Figures of delays: their distribution, and error rate against delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headsync.evaluation.latency import Delays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = {
    "user_perceived": ("user-perceived latency", "#1f5fa8", "-"),
    "first_display": ("first display", "0.5", ":"),
    "user_perceived_computing": ("with computing time", "#c8102e", "-"),
    "finalisation": ("finalisation", "#2e7d32", "-"),
}


class TradeOff(NamedTuple):
    """A measured point: its label, delay in seconds, error rate, and whether no other point is better."""

    label: str
    delay: float
    error_rate: float
    is_best: bool


def delay_distribution(delays: Delays) -> Figure:
    """The share of words (or utterances) whose delay is at most t, for each kind of delay."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axis = figure.subplots()
    for name, (label, colour, line) in CURVES.items():
        values = np.sort(getattr(delays, name))
        if len(values):
            share = np.arange(1, len(values) + 1) / len(values)
            axis.step([values[0], *values], [0.0, *share], where="post", color=colour, linestyle=line, label=label)
    axis.set_xlabel("delay, s")
    axis.set_ylabel("share of words; of utterances for finalisation")
    axis.set_ylim(0.0, 1.02)
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    if axis.lines:
        figure.legend(frameon=False, loc="outside upper center", ncols=2)
    return figure


def trade_off(groups: Mapping[str, Sequence[TradeOff]], xlabel: str) -> Figure:
    """Error rate against delay, one colour for each group; the best points are labelled."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    for n, (name, points) in enumerate(groups.items()):
        best = [point for point in points if point.is_best]
        for some, size, label, shade in ((points, 14, None, 0.35), (best, 26, name, 1.0)):
            rates = [100 * point.error_rate for point in some]
            axis.scatter([point.delay for point in some], rates, size, f"C{n}", alpha=shade, label=label, clip_on=False)
    _label(axis, [point for points in groups.values() for point in points if point.is_best])
    axis.set_xlabel(xlabel)
    axis.set_ylabel("word error rate, %")
    axis.margins(x=0.12, y=0.08)
    axis.set_ylim(bottom=0.0)
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    if groups:
        figure.legend(frameon=False, loc="outside upper center", ncols=2)
    return figure


def _label(axis: Axes, points: Sequence[TradeOff]) -> None:
    """Labels towards the middle of the figure, above and below their points in turn."""
    middle = sum(point.delay for point in points) / max(1, len(points))
    for n, point in enumerate(sorted(points, key=lambda point: (point.delay, point.error_rate))):
        is_late, is_below = point.delay > middle, n % 2 == 1
        axis.annotate(
            point.label, (point.delay, 100 * point.error_rate), xytext=(-4 if is_late else 4, -9 if is_below else 4),
            textcoords="offset points", fontsize="x-small", ha="right" if is_late else "left",
        )  # fmt: skip
