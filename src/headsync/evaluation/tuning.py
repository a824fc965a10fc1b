"""Error rate against delay: a model measured with several delay budgets, and the choice among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from headsync.config import Config
from headsync.corpora.manifest import Progress
from headsync.errors import DataError
from headsync.evaluation.evaluate import EvaluationReport

Measure = Callable[["Budget", Progress], EvaluationReport]


class Budget(NamedTuple):
    """The settings that determine the delay of a stream, as `Recognizer.budget`."""

    lookahead_ms: float
    threshold: float
    pause_seconds: float
    centre_ms: float | None = None  # None: as in the model
    right_ms: float | None = None


class Point(NamedTuple):
    """A measured budget; smaller figures are better."""

    budget: Budget
    error_rate: float
    user_perceived: float  # p90, seconds
    finalisation: float  # p50, seconds

    @property
    def figures(self) -> tuple[float, float, float]:
        return self[1:]


def grid(*values: Sequence[float | None]) -> list[Budget]:
    """Every combination of the values of each setting, in order."""
    return [Budget(*each) for each in product(*values)]  # type: ignore[arg-type]


def measure_points(
    measure: Measure, budgets: Sequence[Budget], cache: Path, identity: dict[str, Any], progress: Progress
) -> list[Point]:
    """The points of all budgets; those that the cache has for this identity are not measured again.

    `identity` names the model, the data and the settings. A point is appended to the cache as soon as it is measured.
    """
    known, points = _read(cache, identity), []
    for number, budget in enumerate(budgets):
        if budget not in known:
            known[budget] = _point(budget, measure(budget, _part(progress, number, len(budgets))))
            line = {**identity, **known[budget]._asdict(), "budget": budget._asdict()}
            with cache.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        points.append(known[budget])
    return points


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in one figure and matches in the others."""
    return [point for point in points if not any(_is_better(other, point) for other in points)]


def choose(points: Sequence[Point], most_delay: float | None = None) -> Point:
    """The point with the fewest errors with a user-perceived latency of at most `most_delay`; then the fastest."""
    allowed = [point for point in points if most_delay is None or point.user_perceived <= most_delay]
    if not allowed:
        least = min(point.user_perceived for point in points)
        raise DataError(f"no point has a delay of at most {most_delay:g} s; the least is {least:.2f} s")
    return min(allowed, key=lambda point: point.figures)


def _part(progress: Progress, number: int, count: int) -> Progress:
    """The progress of measurement `number` as a part of all."""
    return lambda done, total: progress(number * total + done, count * total)


def _is_better(one: Point, other: Point) -> bool:
    return one.figures != other.figures and all(a <= b for a, b in zip(one.figures, other.figures, strict=True))


def _point(budget: Budget, report: EvaluationReport) -> Point:
    perceived, finalisation = report.delays["user_perceived"], report.delays["finalisation"]
    if report.error_rate is None or perceived is None or finalisation is None:
        raise DataError("tuning requires recordings with words that the model recognises; choose other speech.")
    return Point(budget, report.error_rate, perceived.p90, finalisation.p50)


def _read(cache: Path, identity: dict[str, Any]) -> dict[Budget, Point]:
    """The points of this identity; an incomplete line is ignored."""
    found: dict[Budget, Point] = {}
    for raw in cache.read_text(encoding="utf-8").split("\n") if cache.exists() else []:
        try:
            line = json.loads(raw)
            if all(line.get(name) == value for name, value in identity.items()):
                budget = Budget(**line["budget"])
                found[budget] = Point(budget, line["error_rate"], line["user_perceived"], line["finalisation"])
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def with_budget(config: Config, budget: Budget) -> Config:
    rate, encoder = config.frame_rate, config.encoder
    frames = max(1, rate.frames(budget.lookahead_ms / 1000))
    if budget.centre_ms is not None and budget.right_ms is not None:
        centre, right = (rate.frames(ms / 1000) for ms in (budget.centre_ms, budget.right_ms))
        encoder = replace(encoder, centre_frames=centre, right_frames=right)
    return replace(
        config,
        encoder=encoder,
        decoder=replace(config.decoder, threshold=budget.threshold),
        decoding=replace(config.decoding, lookahead_frames=frames),
        endpoint=replace(config.endpoint, pause_seconds=budget.pause_seconds),
    )
