from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headsync.cli import load_model, options
from headsync.cli.output import check_writable, print_rows, progress_bar, write_json
from headsync.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.table import Table

    from headsync.corpora.manifest import Utterance
    from headsync.decoding.confidence import Bin
    from headsync.evaluation.error_rate import ErrorCounts, Interval
    from headsync.evaluation.evaluate import EvaluationReport
    from headsync.evaluation.formatting import FormattingCounts
    from headsync.evaluation.latency import Percentiles
    from headsync.evaluation.reference_times import WordTimes

DELAYS = {
    "user_perceived": "user-perceived latency",
    "user_perceived_computing": "with computing time",
    "first_token": "first token",
    "finalisation": "finalisation",
}


_file = partial(typer.Option, rich_help_panel="Files to write")


@dataclass(frozen=True)
class WrittenFiles:
    json_out: Annotated[Path | None, _file("--json", help="All figures and texts.")] = None
    plot: Annotated[Path | None, _file(help="Figure of the delays, PNG or SVG.")] = None
    ctm: Annotated[Path | None, _file(help="Recognised words with times, as CTM.")] = None
    trn: Annotated[Path | None, _file(help="Folder for ref.trn and hyp.trn, for sclite.")] = None
    simuleval: Annotated[Path | None, _file(help="Folder for the log of SimulEval.")] = None
    simulstream: Annotated[Path | None, _file(help="Folder for the log of simulstream.")] = None

    def check(self) -> None:
        """Raise an error before the work if a file cannot be written."""
        from headsync.evaluation.figure_files import check_figure

        for path in (self.json_out, self.ctm, self.plot):
            check_writable(path)
        check_figure(self.plot)

    def write(self, report: EvaluationReport, about: dict[str, Any]) -> None:
        from headsync.evaluation import exports
        from headsync.evaluation.delay_figures import delay_distribution
        from headsync.evaluation.figure_files import save_figure
        from headsync.evaluation.latency import Delays

        if self.ctm:
            exports.write_ctm(self.ctm, report.outcomes)
        if self.trn:
            exports.write_trn(self.trn, report.outcomes, report.normalise)
        if self.simuleval:
            exports.write_simuleval(self.simuleval, report.outcomes)
        if self.simulstream:
            exports.write_simulstream(self.simulstream, report.outcomes)
        if self.plot:
            delays = sum((outcome.delays for outcome in report.outcomes), Delays())
            save_figure(lambda: delay_distribution(delays), self.plot)
        if self.json_out:
            write_json(self.json_out, {**about, **report.to_dict()})


@dataclass(frozen=True)
class DelayOptions:
    """The delay of a stream; None means as stored with the model."""

    lookahead: Annotated[int | None, typer.Option(min=1, help="Lookahead limit M of a step, encoder frames.")] = None
    threshold: Annotated[float | None, typer.Option(help="Halting threshold of each head; 1 in the paper.")] = None
    centre_ms: Annotated[float | None, typer.Option(help="The encoder's block, milliseconds.")] = None
    right_ms: Annotated[float | None, typer.Option(help="The encoder's right context, milliseconds.")] = None

    @property
    def settings(self) -> dict[str, Any]:
        sizes = {"centre_ms": self.centre_ms, "right_ms": self.right_ms}
        return {"lookahead_frames": self.lookahead, "threshold": self.threshold, **sizes}


@dataclass(frozen=True)
class ReferenceTimes:
    """Reference word times: a file, forced alignment, or a file beside the manifest."""

    times: Annotated[
        Path | None, typer.Option(help="Reference word times (CTM, JSON or a folder of TextGrids) for delays.")
    ] = None
    align: Annotated[
        Literal["pocketsphinx"] | None,
        typer.Option(help="Reference word times by forced alignment, cached beside the manifest."),
    ] = None

    def read(self, manifest: Path, utterances: Sequence[Utterance]) -> tuple[Path | None, WordTimes | None]:
        """The file with word times, if there is one, and its content; an aligner writes it if needed."""
        from headsync.evaluation.reference_times import find_word_times, read_word_times

        if self.times and self.align:
            raise ConfigError("--times and --align exclude each other; leave one of them out.")
        if self.align:
            from headsync.evaluation.alignment import aligned_times, load_aligner

            cache = manifest.with_suffix(f".{self.align}.json")
            check_writable(cache)
            with progress_bar("alignment") as progress:
                return cache, aligned_times(utterances, load_aligner(self.align), cache, progress)
        path = self.times or find_word_times(manifest)
        return path, read_word_times(path) if path else None


@dataclass(frozen=True)
class CountOptions:
    unit: Annotated[Literal["words", "characters"], typer.Option(help="Unit in which errors are counted.")] = "words"
    normalise: options.NormaliserChoice = "none"
    reliability: Annotated[
        bool, typer.Option("--reliability", help="Also print how often words of each confidence are right.")
    ] = False


@options.grouped
def evaluate(
    search: options.SearchOptions,
    files: WrittenFiles,
    delay: DelayOptions,
    reference: ReferenceTimes,
    count: CountOptions,
    model: options.ModelArgument,
    manifest: Annotated[Path, typer.Argument(help="Utterances with their texts, JSON lines.")],
    limit: options.UtteranceLimit = None,
) -> None:
    """Measure errors, delays, stability, cost and speed of a model."""
    from rich.console import Console

    from headsync.evaluation.evaluate import evaluate as measure
    from headsync.evaluation.evaluate import readable

    files.check()
    utterances = read_utterances(manifest, limit)
    times, word_times = reference.read(manifest, utterances)
    recognizer = load_model.load_recognizer(model, **delay.settings, **search.arguments())
    with progress_bar(manifest.name) as progress:
        readable_utterances = readable(utterances, recognizer.vocabulary)
        report = measure(
            recognizer, readable_utterances, unit=count.unit, normalise=count.normalise, word_times=word_times,
            progress=progress,
        )  # fmt: skip
    print_rows(rows(report))
    if count.reliability:
        Console().print(reliability_table("words by confidence", report.reliability))
    about = {"model": model, "manifest": str(manifest), "lm": str(search.lm) if search.lm else None}
    about["word_times_file"] = str(times) if times else None
    files.write(report, {**about, **delay.settings, **search.settings})


def read_utterances(manifest: Path, limit: int | None) -> list[Utterance]:
    """The first utterances of a manifest; an empty one is an error."""
    from headsync.corpora.manifest import read_manifest

    utterances = read_manifest(manifest)[:limit]
    if not utterances:
        raise DataError(f"{manifest}: the manifest is empty; name one with utterances.")
    return utterances


def rows(report: EvaluationReport) -> list[tuple[str, str]]:
    counts, interval = report.counts, report.interval
    clustered, delays, stability = report.interval_by_speaker, report.delays, report.stability
    return [
        ("utterances", f"{report.utterances}, {report.audio_seconds / 60:.1f} minutes"),
        ("error rate", _figure(report.error_rate, "{:.2%}") + _between(interval)),
        *([("clustered by speaker", f"{len(report.speakers)} speakers{_between(clustered)}")] if clustered else []),
        *_speaker_rows(report.speakers),
        (report.unit, str(counts.words)),
        ("substitutions", str(counts.substitutions)),
        ("deletions", str(counts.deletions)),
        ("insertions", str(counts.insertions)),
        *_formatting_rows(report.formatting),
        (f"invented {report.unit} per minute", f"{report.invented_per_minute:.2f}"),
        ("cost ratio r", _figure(report.cost_ratio, "{:.3f}")),
        *([("steps ended by threshold / M / end", _shares(report.stops))] if report.stops else []),
        ("real-time factor", f"{report.real_time_factor:.3f}"),
        ("word ends of delays", report.word_times + _number_of_words(delays["user_perceived"], report.word_times)),
        *((label, _delay(delays[name])) for name, label in DELAYS.items()),
        ("LAAL, mean", _figure(delays["laal"].mean if delays["laal"] else None, "{:.2f} s")),
        ("first display", _delay(delays["first_display"])),  # beside stability: withholding partials must not win
        ("normalised erasure", _figure(stability.normalised_erasure, "{:.3f}")),
        ("unstable partial words", _figure(stability.unstable_share, "{:.2%}")),
    ]


def _speaker_rows(speakers: Mapping[str, ErrorCounts]) -> list[tuple[str, str]]:
    """The lowest, the median and the highest error rate; the JSON file has all."""
    from statistics import median

    rates = sorted((counts.rate, name) for name, counts in speakers.items() if counts.rate is not None)
    if len(rates) < 2:
        return []
    (least, best), (most, worst) = rates[0], rates[-1]
    middle = median(rate for rate, _ in rates)
    return [("error rate by speaker", f"{least:.2%} ({best}), median {middle:.2%}, {most:.2%} ({worst})")]


def _number_of_words(found: Percentiles | None, word_times: str) -> str:
    """With reference times, words without a match have no delay."""
    return f", {found.number if found else 0} words" if word_times == "reference" else ""


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
