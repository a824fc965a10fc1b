"""What a stream says: the last stage of the data path, and all that a caller sees of it.

    search ──► Partial, Partial, ... Final ──► screen, file, network

Any number of `Partial`s, then exactly one `Final` for each utterance; utterance ids count from 0, and the texts of the
Finals joined are the transcript. A Partial may be taken back by the next event, a Final never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Word:
    """One word and where it lies in the stream, in seconds from its first sample."""

    text: str
    start_seconds: float
    end_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The word as JSON-able values, times rounded to milliseconds."""
        return {
            "text": self.text,
            "start_seconds": round(self.start_seconds, 3),
            "end_seconds": round(self.end_seconds, 3),
        }


@dataclass(frozen=True)
class Partial:
    """The utterance so far.

    `time_seconds` is how much audio had to arrive for this event, `delay_seconds` is that minus the end of the last
    word (0 if there is no word, and never below 0): the delay of the method, without the time spent computing.
    """

    utterance: int
    text: str
    words: tuple[Word, ...]
    delay_seconds: float
    time_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-able values, with its type, times rounded to milliseconds."""
        return {"type": "partial", **_shared(self)}


@dataclass(frozen=True)
class Final:
    """The utterance as it stays; times as in `Partial`.

    `halts` holds for each token the encoder frame at which attention stopped; `cost_ratio` is r, eq. (10).
    """

    utterance: int
    text: str
    words: tuple[Word, ...]
    delay_seconds: float
    time_seconds: float
    halts: tuple[int, ...]
    cost_ratio: float

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-able values, with its type, times rounded to milliseconds."""
        return {
            "type": "final",
            **_shared(self),
            "halts": list(self.halts),
            "cost_ratio": round(self.cost_ratio, 4),
        }


Event: TypeAlias = Partial | Final


def _shared(event: Event) -> dict[str, Any]:
    return {
        "utterance": event.utterance,
        "text": event.text,
        "words": [word.to_dict() for word in event.words],
        "delay_seconds": round(event.delay_seconds, 3),
        "time_seconds": round(event.time_seconds, 3),
    }
