"""Everything about a recogniser that a manifest can show, in one report.

Every utterance is streamed through a session of its own in pieces of 0.1 s, as a microphone would bring it: what is
measured is what a person gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headsync.audio import stream_audio
from headsync.data.manifest import Utterance
from headsync.measure.confidence import Bin, Judged, calibration_error, reliability
from headsync.measure.errors import (
    ErrorCounts,
    Interval,
    Unit,
    bootstrap_interval,
    count_errors,
    invented_per_minute,
    right_words,
)
from headsync.measure.latency import percentiles, settled_words
from headsync.measure.timing import Listener, TimedSession
from headsync.tokens import Vocabulary

PIECE_SECONDS = 0.1

Progress = Callable[[int, int], None]  # utterances done, utterances in all


@dataclass(frozen=True)
class Outcome:
    """What came of one utterance."""

    id: str
    reference: str
    hypothesis: str
    counts: ErrorCounts
    audio_seconds: float
    computing_seconds: float
    delays_seconds: tuple[float, ...]
    cost_ratios: tuple[float, ...]  # one for each Final; none where nothing was recognised
    words: tuple[Judged, ...] = ()
    settled_seconds: tuple[float, ...] = ()  # from when each word stands

    def to_dict(self) -> dict[str, Any]:
        """The lines of a person looking for what went wrong."""
        edits = {name: value for name, value in asdict(self.counts).items() if name != "words"}
        return {"id": self.id, "reference": self.reference, "hypothesis": self.hypothesis, **edits}


@dataclass(frozen=True)
class Report:
    """The figures of a manifest; a figure is None where there is nothing to take it from."""

    utterances: int
    audio_seconds: float
    unit: Unit  # of the errors
    counts: ErrorCounts
    error_rate: float | None
    interval: Interval | None
    invented_per_minute: float
    cost_ratio: float | None
    real_time_factor: float
    delay_median_seconds: float | None
    delay_p95_seconds: float | None
    reliability: tuple[Bin, ...]  # of the words' confidences
    outcomes: tuple[Outcome, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able values, every utterance with its texts at the end."""
        figures = {name: getattr(self, name) for name in self.__dataclass_fields__}
        figures["interval"] = list(self.interval) if self.interval else None
        figures["counts"] = {**asdict(self.counts), "errors": self.counts.errors}
        figures["reliability"] = [each._asdict() for each in self.reliability]
        figures["calibration_error"] = calibration_error(self.reliability)
        figures["outcomes"] = [outcome.to_dict() for outcome in self.outcomes]
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}


def evaluate(
    recognizer: Listener, utterances: Sequence[Utterance], *, unit: Unit = "words", progress: Progress | None = None
) -> Report:
    """Stream every utterance through the recogniser and sum up."""
    outcomes: list[Outcome] = []
    for utterance in utterances:
        outcomes.append(_hear(recognizer, utterance, unit))
        if progress:
            progress(len(outcomes), len(utterances))
    return summarise(outcomes, unit)


def readable(utterances: Sequence[Utterance], vocabulary: Vocabulary) -> list[Utterance]:
    """The utterances with as much of their texts as the model is meant to write."""
    return [replace(utterance, text=vocabulary.readable(utterance.text)) for utterance in utterances]


def summarise(outcomes: Sequence[Outcome], unit: Unit = "words") -> Report:
    """Sum up: edits and seconds are pooled, r is averaged over utterances as in Table 4."""
    counts = sum((outcome.counts for outcome in outcomes), ErrorCounts())
    audio_seconds = sum(outcome.audio_seconds for outcome in outcomes)
    computing_seconds = sum(outcome.computing_seconds for outcome in outcomes)
    ratios = [ratio for outcome in outcomes for ratio in outcome.cost_ratios]
    delays = percentiles([delay for outcome in outcomes for delay in outcome.delays_seconds])
    return Report(
        utterances=len(outcomes),
        audio_seconds=audio_seconds,
        unit=unit,
        counts=counts,
        error_rate=counts.rate,
        interval=bootstrap_interval([outcome.counts for outcome in outcomes]),
        invented_per_minute=invented_per_minute(counts, audio_seconds),
        cost_ratio=sum(ratios) / len(ratios) if ratios else None,
        real_time_factor=computing_seconds / audio_seconds if audio_seconds else 0.0,
        delay_median_seconds=delays.median_seconds if delays else None,
        delay_p95_seconds=delays.p95_seconds if delays else None,
        reliability=tuple(reliability([word for outcome in outcomes for word in outcome.words])),
        outcomes=tuple(outcomes),
    )


def _hear(recognizer: Listener, utterance: Utterance, unit: Unit) -> Outcome:
    session = TimedSession(recognizer)
    for samples, sample_rate in stream_audio(utterance.audio, PIECE_SECONDS):
        session.push(samples, sample_rate)
    session.finish()
    confidences = [word.confidence for final in session.finals for word in final.words]
    right = right_words(utterance.text, session.text)
    return Outcome(
        id=utterance.id,
        reference=utterance.text,
        hypothesis=session.text,
        counts=count_errors(utterance.text, session.text, unit),
        audio_seconds=session.audio_seconds,
        computing_seconds=session.computing_seconds,
        delays_seconds=tuple(session.delays),
        cost_ratios=tuple(final.cost_ratio for final in session.finals),
        words=tuple(map(Judged, confidences, right)),
        settled_seconds=tuple(seconds for seconds, _ in settled_words(session.events)),
    )
