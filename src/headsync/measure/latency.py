"""Delay: how much audio arrives after a word has ended, before the word is on the screen to stay.

It is counted on the clock of the audio, so it is the delay of the method and the same on every computer; what computing
adds is the real-time factor's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headsync.events import Event, Final, Partial, Text, Word


class Percentiles(NamedTuple):
    """Half of the delays are below the median, 95 of 100 below the 95th percentile."""

    median_seconds: float
    p95_seconds: float


def word_delays(events: Sequence[Event]) -> list[float]:
    """Give the delay of every final word of a stream, in the order of the words.

    A word counts from the first event that has it at its final position and after which no event takes it back. Ends
    of words are those of the Final, so a word that was guessed before it ended has a negative delay.
    """
    return [settled - word.end_seconds for settled, word in settled_words(events)]


def settled_words(events: Sequence[Event]) -> list[tuple[float, Word]]:
    """Give every final word of a stream, with the audio time from which it stands."""
    utterances: dict[int, list[Text]] = {}
    for event in events:
        if isinstance(event, Partial | Final):
            utterances.setdefault(event.utterance, []).append(event)
    ended = [utterance for utterance in utterances.values() if isinstance(utterance[-1], Final)]
    return [
        (_settled_seconds(utterance, position), word)
        for utterance in ended
        for position, word in enumerate(utterance[-1].words)
    ]


def percentiles(delays: Sequence[float]) -> Percentiles | None:
    """Summarise the delays; None where there was no word."""
    if not delays:
        return None
    median, p95 = np.percentile(delays, [50, 95])
    return Percentiles(float(median), float(p95))


def _settled_seconds(utterance: Sequence[Text], position: int) -> float:
    """Audio time from which all events of one utterance, its Final the last, agree on the word at a position."""
    final = utterance[-1]
    settled = final.time_seconds
    for event in reversed(utterance):
        if len(event.words) <= position or event.words[position].text != final.words[position].text:
            break
        settled = event.time_seconds
    return settled
