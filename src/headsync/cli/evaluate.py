"""`headsync evaluate`: the figures of a model on a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headsync.cli import load_model, options
from headsync.cli.output import check_writable, print_rows, write_json
from headsync.cli.progress import progress_bar
from headsync.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

    from headsync.decoding.confidence import Bin
    from headsync.evaluation.error_rate import Interval
    from headsync.evaluation.evaluate import EvaluationReport
    from headsync.evaluation.formatting import FormattingCounts
    from headsync.evaluation.latency import Percentiles

DELAYS = {
    "user_perceived": "user-perceived latency",
    "user_perceived_computing": "with computing time",
    "first_display": "first display",
    "first_token": "first token",
    "finalisation": "finalisation",
}


class Normaliser(Enum):
    """Text normalisation before errors are counted."""

    none = "none"
    english = "english"


@options.grouped
def evaluate(
    search: options.SearchOptions,
    model: options.ModelArgument,
    manifest: Annotated[Path, typer.Argument(help="Utterances with their texts, JSON lines.")],
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write all figures and texts here.")] = None,
    lookahead: Annotated[int | None, typer.Option(min=1, help="Lookahead limit M of a step, encoder frames.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Halting threshold of each head; 1 in the paper.")] = None,
    reliability: Annotated[
        bool, typer.Option("--reliability", help="Also print how often words of each confidence are right.")
    ] = False,
    unit: Annotated[options.UnitName, typer.Option(help="Unit in which errors are counted.")] = options.UnitName.words,
    normalise: Annotated[
        Normaliser, typer.Option(help="Normalise texts before counting errors; english is Whisper's normaliser.")
    ] = Normaliser.none,
    times: Annotated[
        Path | None, typer.Option(help="Reference word times (CTM, JSON or a folder of TextGrids) for delays.")
    ] = None,
    ctm: Annotated[Path | None, typer.Option(help="Also write the recognised words with times here, as CTM.")] = None,
    trn: Annotated[Path | None, typer.Option(help="Also write ref.trn and hyp.trn for sclite to this folder.")] = None,
    limit: options.Limit = None,
) -> None:
    """Measure errors, delays, stability, cost and speed of a model."""
    from rich.console import Console

    from headsync.corpora.manifest import read_manifest
    from headsync.evaluation.evaluate import evaluate as measure
    from headsync.evaluation.evaluate import readable
    from headsync.evaluation.exports import write_ctm, write_trn
    from headsync.evaluation.reference_times import find_word_times, read_word_times

    check_writable(json_out)
    check_writable(ctm)
    utterances = read_manifest(manifest)[:limit]
    if not utterances:
        raise DataError(f"{manifest}: the manifest is empty; name one with utterances.")
    times = times or find_word_times(manifest)
    word_times = read_word_times(times) if times else None
    settings: dict[str, Any] = {"lookahead_frames": lookahead, "threshold": threshold}
    recognizer = load_model.load_recognizer(model, **settings, **search.arguments())
    with progress_bar(manifest.name) as progress:
        readable_utterances = readable(utterances, recognizer.vocabulary)
        report = measure(
            recognizer, readable_utterances, unit=unit.value, normalise=normalise.value, word_times=word_times,
            progress=progress,
        )  # fmt: skip
    print_rows(rows(report))
    if reliability:
        Console().print(reliability_table("words by confidence", report.reliability))
    if ctm:
        write_ctm(ctm, report.outcomes)
    if trn:
        write_trn(trn, report.outcomes)
    if json_out:
        about = {"model": model, "manifest": str(manifest), "lm": str(search.lm) if search.lm else None}
        about["word_times_file"] = str(times) if times else None
        write_json(json_out, {**about, **settings, **search.settings, **report.to_dict()})


def rows(report: EvaluationReport) -> list[tuple[str, str]]:
    """The figures, formatted."""
    counts, interval = report.counts, report.interval
    clustered, delays, stability = report.interval_by_speaker, report.delays, report.stability
    return [
        ("utterances", f"{report.utterances}, {report.audio_seconds / 60:.1f} minutes"),
        ("error rate", _figure(report.error_rate, "{:.2%}") + _between(interval)),
        *([("clustered by speaker", f"{len(report.speakers)} speakers{_between(clustered)}")] if clustered else []),
        (report.unit, str(counts.words)),
        ("substitutions", str(counts.substitutions)),
        ("deletions", str(counts.deletions)),
        ("insertions", str(counts.insertions)),
        *_formatting_rows(report.formatting),
        (f"invented {report.unit} per minute", f"{report.invented_per_minute:.2f}"),
        ("cost ratio r", _figure(report.cost_ratio, "{:.3f}")),
        *([("steps ended by threshold / M / end", _shares(report.stops))] if report.stops else []),
        ("real-time factor", f"{report.real_time_factor:.3f}"),
        ("word ends of delays", report.word_times),
        *((label, _delay(delays[name])) for name, label in DELAYS.items()),
        ("LAAL, mean", _figure(delays["laal"].mean if delays["laal"] else None, "{:.2f} s")),
        ("normalised erasure", _figure(stability.normalised_erasure, "{:.3f}")),
        ("unstable partial words", _figure(stability.unstable_share, "{:.2%}")),
    ]


def _formatting_rows(counts: FormattingCounts) -> list[tuple[str, str]]:
    """Errors of case and punctuation, if the references have them."""
    if not counts.words:
        return []
    return [
        ("case errors", f"{counts.case} ({counts.case / counts.words:.2%} of recognised words)"),
        ("punctuation errors", f"{counts.punctuation} ({counts.punctuation / counts.words:.2%})"),
    ]


def _shares(shares: Mapping[str, float]) -> str:
    return " / ".join(f"{share:.1%}" for share in shares.values())


def _between(interval: Interval | None) -> str:
    return f"  (95 %: {interval.low:.2%} to {interval.high:.2%})" if interval else ""


def _delay(found: Percentiles | None) -> str:
    if found is None:
        return "-"
    return f"{found.p50:.2f} s  (p90 {found.p90:.2f}, p95 {found.p95:.2f}, p99 {found.p99:.2f})"


def reliability_table(title: str, bins: Sequence[Bin]) -> Table:
    """How often words of each confidence are right."""
    from rich.table import Table

    from headsync.decoding.confidence import calibration_error

    caption = f"expected calibration error {calibration_error(bins):.3f}"
    table = Table("confidence", "words", "mean", "right", title=title, caption=caption, box=None, header_style="bold")
    for each in bins:
        span = f"{each.low:.2f} to {each.high:.2f}"
        table.add_row(span, str(each.words), f"{each.confidence:.3f}", f"{each.right:.3f}")
    return table


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
