"""Evaluation of a recogniser on a manifest: errors, delays, stability, cost and speed in one report.

Each utterance is streamed in chunks of 0.1 s through a new session. docs/reference/measures.md defines all figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from headsync.corpora.manifest import Progress, Utterance
from headsync.decoding.confidence import Bin, ScoredWord, calibration_error, reliability
from headsync.decoding.cost import sum_stops
from headsync.evaluation.error_rate import (
    ErrorCounts,
    Interval,
    Unit,
    bootstrap_interval,
    count_errors,
    invented_per_minute,
    right_words,
)
from headsync.evaluation.formatting import FormattingCounts, bare, count_formatting
from headsync.evaluation.latency import (
    Delays,
    Moment,
    Percentiles,
    TimedWord,
    displayed_texts,
    measure_delays,
    shown_words,
)
from headsync.evaluation.normalise import Normalisation, normaliser
from headsync.evaluation.reference_times import WordTimes
from headsync.evaluation.stability import Stability, measure_stability
from headsync.evaluation.timed_session import SessionFactory, TimedSession
from headsync.events import NO_STOPS, Stops, Word, rounded
from headsync.frontend.audio import stream_audio
from headsync.text.vocabulary import Vocabulary

PIECE_SECONDS = 0.1


@dataclass(frozen=True)
class UtteranceResult:
    id: str
    speaker: str
    reference: str
    hypothesis: str
    counts: ErrorCounts
    formatting: FormattingCounts
    audio_seconds: float
    computing_seconds: float
    delays: Delays
    stability: Stability
    cost_ratios: tuple[float, ...]  # one for each Final
    stops: Stops = NO_STOPS
    words: tuple[ScoredWord, ...] = ()
    final_words: tuple[Word, ...] = ()
    settled: tuple[Moment, ...] = ()  # time at which each word is final
    displayed: tuple[tuple[Moment, tuple[str, ...]], ...] = ()  # all words on display, after each change

    def to_dict(self) -> dict[str, Any]:
        """Texts and edits as JSON values."""
        texts = {name: getattr(self, name) for name in ("id", "speaker", "reference", "hypothesis")}
        return texts | {name: value for name, value in asdict(self.counts).items() if name != "words"}


@dataclass(frozen=True)
class EvaluationReport:
    """The figures of a manifest; a figure without data is None."""

    utterances: int
    audio_seconds: float
    unit: Unit
    normalise: Normalisation
    counts: ErrorCounts
    error_rate: float | None
    interval: Interval | None  # bootstrap over utterances
    interval_by_speaker: Interval | None  # bootstrap clustered by speaker; None with fewer than two speakers
    speakers: dict[str, ErrorCounts]
    formatting: FormattingCounts
    invented_per_minute: float
    cost_ratio: float | None
    stops: dict[str, float] | None  # shares of output steps, over layers and heads, by what stopped them
    real_time_factor: float
    word_times: str  # "reference" or "recogniser": the word ends of the delays
    delays: dict[str, Percentiles | None]
    stability: Stability
    reliability: tuple[Bin, ...]
    outcomes: tuple[UtteranceResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, with the texts of every utterance at the end."""
        figures = {name: getattr(self, name) for name in self.__dataclass_fields__}
        figures["counts"] = {**asdict(self.counts), "errors": self.counts.errors}
        figures["speakers"] = {
            name: {"errors": counts.errors, "words": counts.words, "error_rate": counts.rate}
            for name, counts in self.speakers.items()
        }
        figures["formatting"] = asdict(self.formatting)
        figures["delays"] = {name: found._asdict() if found else None for name, found in self.delays.items()}
        shares = {name: getattr(self.stability, name) for name in ("normalised_erasure", "unstable_share")}
        figures["stability"] = {**asdict(self.stability), **shares}
        figures["reliability"] = [each._asdict() for each in self.reliability]
        figures["calibration_error"] = calibration_error(self.reliability)
        figures["outcomes"] = [outcome.to_dict() for outcome in self.outcomes]
        return dict(rounded(figures, 4))


def evaluate(
    recognizer: SessionFactory,
    utterances: Sequence[Utterance],
    *,
    unit: Unit = "words",
    normalise: Normalisation = "none",
    word_times: WordTimes | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Stream every utterance; without `word_times`, delays are measured against the recogniser's own word times."""
    normaliser(normalise)  # a missing package is an error before recognition, not after
    outcomes: list[UtteranceResult] = []
    for utterance in utterances:
        spoken = None if word_times is None else word_times.get(utterance.id, ())
        outcomes.append(_recognise(recognizer, utterance, unit, normalise, spoken))
        if progress:
            progress(len(outcomes), len(utterances))
    return summarise(outcomes, unit, normalise, "recogniser" if word_times is None else "reference")


def readable(utterances: Sequence[Utterance], vocabulary: Vocabulary) -> list[Utterance]:
    """The utterances without sound tokens in their texts."""
    return [replace(utterance, text=vocabulary.readable(utterance.text)) for utterance in utterances]


def summarise(
    outcomes: Sequence[UtteranceResult],
    unit: Unit = "words",
    normalise: Normalisation = "none",
    word_times: str = "recogniser",
) -> EvaluationReport:
    """Pool edits, delays and seconds; r is that of eq. (10) for each recording, averaged over recordings."""
    counts = sum((outcome.counts for outcome in outcomes), ErrorCounts())
    audio_seconds = sum(outcome.audio_seconds for outcome in outcomes)
    computing_seconds = sum(outcome.computing_seconds for outcome in outcomes)
    ratios = [mean(outcome.cost_ratios) for outcome in outcomes if outcome.cost_ratios]
    speakers = _by_speaker(outcomes)
    return EvaluationReport(
        utterances=len(outcomes),
        audio_seconds=audio_seconds,
        unit=unit,
        normalise=normalise,
        counts=counts,
        error_rate=counts.rate,
        interval=bootstrap_interval([outcome.counts for outcome in outcomes]),
        interval_by_speaker=bootstrap_interval(list(speakers.values())) if len(speakers) > 1 else None,
        speakers=speakers,
        formatting=sum((outcome.formatting for outcome in outcomes), FormattingCounts()),
        invented_per_minute=invented_per_minute(counts, audio_seconds),
        cost_ratio=sum(ratios) / len(ratios) if ratios else None,
        stops=_shares([outcome.stops for outcome in outcomes]),
        real_time_factor=computing_seconds / audio_seconds if audio_seconds else 0.0,
        word_times=word_times,
        delays=sum((outcome.delays for outcome in outcomes), Delays()).summary(),
        stability=sum((outcome.stability for outcome in outcomes), Stability()),
        reliability=tuple(reliability([word for outcome in outcomes for word in outcome.words])),
        outcomes=tuple(outcomes),
    )


def _recognise(
    recognizer: SessionFactory, utterance: Utterance, unit: Unit, normalisation: Normalisation,
    spoken: Sequence[TimedWord] | None,
) -> UtteranceResult:  # fmt: skip
    session = TimedSession(recognizer)
    for samples, sample_rate in stream_audio(utterance.audio, PIECE_SECONDS):
        session.push(samples, sample_rate)
    session.finish()
    normalise, events = normaliser(normalisation), session.timed_events
    final_words = tuple(word for final in session.finals for word in final.words)
    compare = str if normalisation == "none" else _bare_words
    right = right_words(compare(utterance.text), compare(session.text))
    return UtteranceResult(
        id=utterance.id,
        speaker=utterance.speaker,
        reference=utterance.text,
        hypothesis=session.text,
        counts=count_errors(normalise(utterance.text), normalise(session.text), unit),
        formatting=count_formatting(utterance.text, session.text),
        audio_seconds=session.audio_seconds,
        computing_seconds=session.computing_seconds,
        delays=measure_delays(events, spoken, len(utterance.text.split())),
        stability=measure_stability(events),
        cost_ratios=tuple(final.cost_ratio for final in session.finals),
        stops=sum_stops(NO_STOPS, *(final.stops for final in session.finals)),
        words=tuple(map(ScoredWord, (word.confidence for word in final_words), right)),
        final_words=final_words,
        settled=tuple(shown.stays for shown in shown_words(events)),
        displayed=tuple(displayed_texts(events)),
    )


def _shares(stops: Sequence[Stops]) -> dict[str, float] | None:
    counts = sum_stops(NO_STOPS, *stops)
    return {name: count / sum(counts) for name, count in counts._asdict().items()} if any(counts) else None


def _bare_words(text: str) -> str:
    """The words without case and punctuation; their number is unchanged."""
    return " ".join(bare(word) or word for word in text.split())


def _by_speaker(outcomes: Sequence[UtteranceResult]) -> dict[str, ErrorCounts]:
    found: dict[str, ErrorCounts] = {}
    for outcome in outcomes:
        if outcome.speaker:
            found[outcome.speaker] = found.get(outcome.speaker, ErrorCounts()) + outcome.counts
    return dict(sorted(found.items()))
