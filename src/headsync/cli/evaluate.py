"""`headsync evaluate`: a model and a manifest in, a table of figures out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headsync.cli import loading, options
from headsync.cli.printing import print_rows, refuse_unwritable
from headsync.cli.progress import progress_bar
from headsync.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

    from headsync.measure.confidence import Bin
    from headsync.measure.evaluate import Report


def evaluate(
    model: Annotated[str, typer.Argument(help="Name of a shipped model, or a model folder.")],
    manifest: Annotated[Path, typer.Argument(help="Utterances with their texts, JSON lines.")],
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write the figures and all texts here.")] = None,
    beam: options.Beam = None,
    lookahead: Annotated[int | None, typer.Option(min=1, help="Encoder frames M a step may look ahead.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Halting threshold of each head, above 0; 1 in the paper.")
    ] = None,
    ctc_weight: options.CtcWeight = None,
    lm: options.Lm = None,
    lm_weight: options.LmWeight = None,
    hotwords: options.Hotwords = None,
    engine: options.EngineChoice = options.EngineName.auto,
    reliability: Annotated[
        bool, typer.Option("--reliability", help="Also print how often words of each confidence are right.")
    ] = False,
    unit: Annotated[options.UnitName, typer.Option(help="What errors are counted in.")] = options.UnitName.words,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many utterances.")] = None,
) -> None:
    """Measure errors, delay, cost and speed of a model."""
    from rich.console import Console

    from headsync.data.manifest import read_manifest
    from headsync.measure.evaluate import evaluate as measure
    from headsync.measure.evaluate import readable

    refuse_unwritable(json_out)
    utterances = read_manifest(manifest)[:limit]
    if not utterances:
        raise DataError(f"{manifest}: the manifest is empty, so there is nothing to measure.")
    settings = {"beam": beam, "lookahead_frames": lookahead, "threshold": threshold}
    settings |= {"ctc_weight": ctc_weight, "lm_weight": lm_weight}
    recognizer = loading.load_recognizer(
        model, engine=engine.value, lm=lm, hotwords=options.read_hotwords(hotwords), **settings
    )
    with progress_bar(manifest.name) as progress:
        said = readable(utterances, recognizer.vocabulary)
        report = measure(recognizer, said, unit=unit.value, progress=progress)
    print_rows(rows(report))
    if reliability:
        Console().print(reliability_table("words by confidence", report.reliability))
    if json_out:
        given = {"model": model, "manifest": str(manifest), "lm": str(lm) if lm else None, **settings}
        _write_json(json_out, {**given, **report.to_dict()})


def rows(report: Report) -> list[tuple[str, str]]:
    """The figures in the order and the form in which people read them."""
    counts, interval = report.counts, report.interval
    between = f"  (95 %: {interval.low:.2%} to {interval.high:.2%})" if interval else ""
    return [
        ("utterances", f"{report.utterances}, {report.audio_seconds / 60:.1f} minutes"),
        ("error rate", _figure(report.error_rate, "{:.2%}") + between),
        (report.unit, str(counts.words)),
        ("substitutions", str(counts.substitutions)),
        ("deletions", str(counts.deletions)),
        ("insertions", str(counts.insertions)),
        (f"invented {report.unit} per minute", f"{report.invented_per_minute:.2f}"),
        ("cost ratio r", _figure(report.cost_ratio, "{:.3f}")),
        ("real-time factor", f"{report.real_time_factor:.3f}"),
        ("delay, median", _figure(report.delay_median_seconds, "{:.2f} s")),
        ("delay, 95th percentile", _figure(report.delay_p95_seconds, "{:.2f} s")),
    ]


def reliability_table(title: str, bins: Sequence[Bin]) -> Table:
    """How often words of each confidence are right."""
    from rich.table import Table

    from headsync.measure.confidence import calibration_error

    caption = f"apart by {calibration_error(bins):.3f} on average"
    table = Table("confidence", "words", "mean", "right", title=title, caption=caption, box=None, header_style="bold")
    for each in bins:
        span = f"{each.low:.2f} to {each.high:.2f}"
        table.add_row(span, str(each.words), f"{each.confidence:.3f}", f"{each.right:.3f}")
    return table


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
