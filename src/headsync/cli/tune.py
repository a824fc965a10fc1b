from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headsync.cli import load_model, options
from headsync.cli.calibrate import check_folders, write_config
from headsync.cli.evaluate import ReferenceTimes, read_utterances
from headsync.cli.output import check_writable, progress_bar

if TYPE_CHECKING:
    from headsync.evaluation.tuning import Budget, Point

_axis = partial(typer.Option, rich_help_panel="Delay budgets to measure, in every combination; options may be repeated")


@dataclass(frozen=True)
class BudgetGrid:
    lookahead_ms: Annotated[list[float], _axis(help="Lookahead limit M in milliseconds.")] = field(
        default_factory=lambda: [160.0, 320.0, 640.0]
    )
    threshold: Annotated[list[float], _axis(help="Halting threshold of each head.")] = field(
        default_factory=lambda: [0.5, 0.75, 1.0]
    )
    pause: Annotated[list[float], _axis(help="Pause that ends an utterance, in seconds.")] = field(
        default_factory=lambda: [0.5, 0.8, 1.2]
    )
    centre_ms: Annotated[list[float] | None, _axis(help="The encoder's block, milliseconds.")] = None
    right_ms: Annotated[list[float] | None, _axis(help="The encoder's right context, milliseconds.")] = None

    def every(self, own: Budget) -> list[Budget]:
        """The model's own budget, and every combination of the values."""
        from headsync.evaluation.tuning import grid

        centres: Sequence[float | None] = self.centre_ms or [own.centre_ms]
        rights: Sequence[float | None] = self.right_ms or [own.right_ms]
        return list(dict.fromkeys([own, *grid(self.lookahead_ms, self.threshold, self.pause, centres, rights)]))


@dataclass(frozen=True)
class ChoiceOptions:
    most_delay: Annotated[
        float | None, typer.Option(help="Choose among points with at most this user-perceived latency, p90, seconds.")
    ] = None
    write: Annotated[
        Path | None,
        typer.Option(help="New folder for a copy of the model with the chosen point, or the model's own folder."),
    ] = None
    plot: Annotated[Path | None, typer.Option(help="Figure of error rate against delay, PNG or SVG.")] = None


@options.grouped
def tune(
    search: options.SearchOptions,
    values: BudgetGrid,
    choice: ChoiceOptions,
    reference: ReferenceTimes,
    model: options.ModelArgument,
    manifest: Annotated[Path, typer.Argument(help="Development speech with its texts, JSON lines.")],
    normalise: options.NormaliserChoice = "none",
    limit: options.UtteranceLimit = None,
) -> None:
    """Measure a model with several delay budgets, and choose one."""
    from headsync.evaluation.evaluate import evaluate, readable
    from headsync.evaluation.figure_files import check_figure
    from headsync.evaluation.tuning import Budget, choose, measure_points, pareto_front, with_budget

    check_writable(choice.plot)
    check_figure(choice.plot)
    folder = check_folders(model, choice.write) if choice.write else None
    utterances = read_utterances(manifest, limit)
    times, word_times = reference.read(manifest, utterances)
    recognizer = load_model.load_recognizer(model, **search.arguments())
    budgets = values.every(Budget(**recognizer.budget))
    for budget in budgets:
        with load_model.option_names():
            recognizer.changed(budget._asdict())  # an error in a setting is raised here, before the first measurement
    identity = {**_identity(recognizer.folder.path, manifest, times), "limit": limit, "normalise": normalise}
    identity |= {name: value for name, value in search.arguments().items() if value}
    with progress_bar(manifest.name) as progress:
        texts = readable(utterances, recognizer.vocabulary)
        points = measure_points(
            lambda budget, done: evaluate(
                recognizer.changed(budget._asdict()), texts,
                normalise=normalise, word_times=word_times, progress=done,
            ),
            budgets, manifest.with_suffix(".tune.jsonl"), _as_json(identity), progress,
        )  # fmt: skip
    front, chosen = pareto_front(points), choose(points, choice.most_delay)
    _print_points(points, front, chosen, "recogniser" if word_times is None else "reference")
    if choice.plot:
        _draw(points, front, choice.plot)
    if folder:
        typer.echo(f"wrote {write_config(folder, choice.write, with_budget(folder.config, chosen.budget))}")


def _identity(model: Path, manifest: Path, times: Path | None) -> dict[str, Any]:
    """Checksums of the files that the figures depend on."""
    from headsync.batch_transcription import checksum

    data = hashlib.sha256(manifest.read_bytes())
    if times:
        data.update(checksum(times).encode())
    return {"model": checksum(model), "data": data.hexdigest()}


def _as_json(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity in the form in which the cache returns it."""
    import json

    parsed: dict[str, Any] = json.loads(json.dumps(identity, default=str))
    return parsed


def _print_points(points: Sequence[Point], front: Sequence[Point], chosen: Point, word_times: str) -> None:
    from rich.console import Console
    from rich.table import Table

    sizes = () if points[0].budget.centre_ms is None else ("block, ms", "right, ms")
    columns = ("M, ms", "threshold", "pause, s", *sizes, "errors", "latency, s", "final, s", "")
    caption = f"latency: user-perceived, p90; final: finalisation, p50; word ends: {word_times}"
    table = Table(*columns, box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", caption=caption)
    for point in sorted(points, key=lambda point: (point.user_perceived, point.error_rate)):
        figures = (f"{point.error_rate:.2%}", f"{point.user_perceived:.2f}", f"{point.finalisation:.2f}")
        mark = "chosen" if point == chosen else "front" if point in front else ""
        table.add_row(*(f"{value:g}" for value in point.budget if value is not None), *figures, mark)
    Console().print(table)


def _draw(points: Sequence[Point], front: Sequence[Point], path: Path) -> None:
    from headsync.evaluation.delay_figures import TradeOff, trade_off
    from headsync.evaluation.figure_files import save_figure

    def pause(point: Point) -> float:
        return point.budget.pause_seconds

    groups = {
        f"pause {seconds:g} s": [
            TradeOff(_label(point), point.user_perceived, point.error_rate, point in front) for point in some
        ]
        for seconds, some in groupby(sorted(points, key=pause), pause)
    }
    save_figure(lambda: trade_off(groups, "user-perceived latency, p90, s"), path)


def _label(point: Point) -> str:
    budget = point.budget
    sizes = "" if budget.centre_ms is None else f", {budget.centre_ms:g} + {budget.right_ms:g} ms"
    return f"M {budget.lookahead_ms:g} ms, {budget.threshold:g}{sizes}"
