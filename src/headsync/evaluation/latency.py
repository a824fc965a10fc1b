"""Delays of words in a stream, in seconds; docs/reference/measures.md has the definitions and their sources.

Delays on the audio clock count the audio that had to arrive: they are properties of the method, the same on every
computer and for any chunking of the audio. Delays with computing time assume that audio arrives in real time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headsync.evaluation.formatting import Additive, bare, equal_words
from headsync.events import Event, Final, Partial, Text, Word


class Percentiles(NamedTuple):
    """A distribution of delays in seconds."""

    number: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class TimedWord(NamedTuple):
    """A reference word and its times in the recording, in seconds."""

    text: str
    start: float
    end: float


class Moment(NamedTuple):
    """The time of an event: audio received, and real time with computing."""

    audio_seconds: float
    wall_seconds: float


class ShownWord(NamedTuple):
    """A word of a Final, the time of its first display, and the time after which it did not change."""

    word: Word
    first: Moment
    stays: Moment


@dataclass(frozen=True)
class Delays(Additive):
    """The delays of one recording, or of many (they add up); times in seconds."""

    user_perceived: tuple[float, ...] = ()
    user_perceived_computing: tuple[float, ...] = ()
    first_display: tuple[float, ...] = ()
    first_token: tuple[float, ...] = ()
    finalisation: tuple[float, ...] = ()
    laal: tuple[float, ...] = ()

    def summary(self) -> dict[str, Percentiles | None]:
        """Percentiles of every kind of delay; None for a kind without values."""
        return {name: percentiles(getattr(self, name)) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class TimedEvents:
    """The events of one recording: what was displayed, and when."""

    events: Sequence[Event]
    audio_seconds: float
    wall_seconds: Sequence[float] = field(default=())  # of each event; empty: computing takes no time

    def utterances(self) -> list[list[tuple[Text, Moment]]]:
        """The texts of every utterance. One whose text was removed before its end has no Final."""
        walls = self.wall_seconds or [event.time_seconds for event in self.events]
        found: dict[int, list[tuple[Text, Moment]]] = {}
        for event, wall in zip(self.events, walls, strict=True):
            if isinstance(event, Partial | Final):
                found.setdefault(event.utterance, []).append((event, Moment(event.time_seconds, wall)))
        return list(found.values())

    def finished(self) -> list[list[tuple[Text, Moment]]]:
        """The texts of every utterance that has a Final, which is the last."""
        return [texts for texts in self.utterances() if isinstance(texts[-1][0], Final)]


def displayed_texts(stream: TimedEvents) -> list[tuple[Moment, tuple[str, ...]]]:
    """All words of a recording on display after each event that changes them."""
    found: list[tuple[Moment, tuple[str, ...]]] = []
    before: tuple[str, ...] = ()  # of earlier utterances
    for texts in stream.utterances():
        for text, moment in texts:
            words = (*before, *(word.text for word in text.words))
            if words != (found[-1][1] if found else ()):
                found.append((moment, words))
        before = found[-1][1] if found else ()
    return found


def shown_words(stream: TimedEvents) -> list[ShownWord]:
    """Every final word of a recording, in order."""
    return [_shown(texts, position) for texts in stream.finished() for position in range(len(texts[-1][0].words))]


def word_delays(events: Sequence[Event]) -> list[float]:
    """User-perceived latency of every final word, by the recogniser's own word ends and on the audio clock."""
    return [shown.stays.audio_seconds - shown.word.end_seconds for shown in shown_words(TimedEvents(events, 0.0))]


def measure_delays(stream: TimedEvents, reference: Sequence[TimedWord] | None, reference_words: int) -> Delays:
    """All delays of one recording; without reference times those of the recogniser's own words are used."""
    shown = shown_words(stream)
    spoken = _spoken(shown, reference)
    perceived = [(one.stays, one.first, spoken[n].end) for n, one in enumerate(shown) if n in spoken]
    starts = [one.word.start_seconds for one in shown] if reference is None else [one.start for one in reference]
    displayed = [event.time_seconds for event in stream.events if isinstance(event, Partial | Final) and event.text]
    lag = laal([one.stays.audio_seconds for one in shown], reference_words, stream.audio_seconds)
    return Delays(
        tuple(stays.audio_seconds - end for stays, _, end in perceived),
        tuple(stays.wall_seconds - end for stays, _, end in perceived),
        tuple(first.audio_seconds - end for _, first, end in perceived),
        (displayed[0] - starts[0],) if displayed and starts else (),
        tuple(_finalisation(stream, spoken)),
        () if lag is None else (lag,),
    )


def laal(emitted: Sequence[float], reference_words: int, audio_seconds: float) -> float | None:
    """Length-adaptive average lagging: mean lag behind an ideal that emits words evenly over the recording."""
    if not emitted or not audio_seconds:
        return None
    step = audio_seconds / max(len(emitted), reference_words)
    last = next((n for n, seconds in enumerate(emitted) if seconds >= audio_seconds), len(emitted) - 1)
    return sum(seconds - n * step for n, seconds in enumerate(emitted[: last + 1])) / (last + 1)


def percentiles(delays: Sequence[float]) -> Percentiles | None:
    """The distribution of delays; None without a delay."""
    if not delays:
        return None
    points = (float(value) for value in np.percentile(delays, [50, 90, 95, 99]))
    return Percentiles(len(delays), float(np.mean(delays)), *points)


def _finalisation(stream: TimedEvents, spoken: Mapping[int, TimedWord]) -> list[float]:
    """From the end of the last word of each utterance to its Final."""
    found, last = [], -1
    for texts in stream.finished():
        final = texts[-1][0]
        last += len(final.words)
        if final.words and last in spoken:
            found.append(final.time_seconds - spoken[last].end)
    return found


def _spoken(shown: Sequence[ShownWord], reference: Sequence[TimedWord] | None) -> dict[int, TimedWord]:
    """The reference word of each final word, by its number; words without a match are absent."""
    if reference is None:
        own = [TimedWord(one.word.text, one.word.start_seconds, one.word.end_seconds) for one in shown]
        return dict(enumerate(own))
    said = [bare(word.text) or "-" for word in reference]
    written = [bare(one.word.text) or "-" for one in shown]
    return {m: reference[n] for n, m in equal_words(said, written)}


def _shown(texts: Sequence[tuple[Text, Moment]], position: int) -> ShownWord:
    """The word at this position of the Final: its first display, and the time after which it did not change."""
    final, last = texts[-1]
    word = final.words[position]
    has_word = [len(text.words) > position and text.words[position].text == word.text for text, _ in texts]
    first = texts[has_word.index(True)][1]
    stays = last
    for (_, moment), same in zip(reversed(texts), reversed(has_word), strict=True):
        if not same:
            break
        stays = moment
    return ShownWord(word, first, stays)
