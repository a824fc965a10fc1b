"""The events of a stream: the last stage of the data path.

    search ──► Partial, Partial, ... Final, Endpoint ──► screen, file, network
               (Attention)

An utterance has any number of `Partial`s, then exactly one `Final`. Utterances count from 0, and the texts of the
Finals joined are the transcript. The `committed` part of a Partial is final, the `tentative` part may change. An
`Endpoint` is the reason why an utterance ended before the stream did, or reports a long silence. Repeated events are
not sent. A stream opened with `attention` also has an `Attention` event for every committed token.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

Reason: TypeAlias = Literal["pause", "length", "silence"]


@dataclass(frozen=True)
class Word:
    """One word and its times in the stream, in seconds from the first sample."""

    text: str
    start_seconds: float
    end_seconds: float
    confidence: float = 1.0  # probability that it is correct, if the model is calibrated

    def to_dict(self) -> dict[str, Any]:
        """The word as JSON-able values, times rounded to milliseconds."""
        return dict(rounded(asdict(self)))


@dataclass(frozen=True)
class Alternative:
    """Another hypothesis of an utterance, and the distance of its score from that of the best hypothesis."""

    text: str
    behind: float

    def to_dict(self) -> dict[str, Any]:
        """The alternative as JSON-able values."""
        return dict(rounded(asdict(self)))


class Stops(NamedTuple):
    """What stopped the heads of all layers, summed over output steps."""

    threshold: int = 0  # the threshold was reached, or a boundary found
    limit: int = 0  # the look-ahead M, a CTC trigger, or the end of a block
    end: int = 0  # the end of the utterance


NO_STOPS = Stops()


@dataclass(frozen=True)
class Partial:
    """The utterance so far.

    The first `committed_words` words are final. `time_seconds` is the audio time after which this event was possible.
    `delay_seconds` is that minus the end of the last word (at least 0, and 0 without words): the algorithmic delay,
    without computing time.
    """

    utterance: int
    text: str
    words: tuple[Word, ...]
    delay_seconds: float
    time_seconds: float
    committed_words: int = 0

    @property
    def committed(self) -> str:
        """The final part: every later text of the utterance begins with it."""
        return " ".join(word.text for word in self.words[: self.committed_words])

    @property
    def tentative(self) -> str:
        """The part that the next event may change."""
        return " ".join(word.text for word in self.words[self.committed_words :])

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-able values, with its type, times rounded to milliseconds."""
        return _plain(self, "committed_words") | {"committed": self.committed, "tentative": self.tentative}


@dataclass(frozen=True)
class Final:
    """The final text of an utterance; times as in `Partial`.

    `halts` holds for each token the encoder frame at which attention stopped; `cost_ratio` is r, eq. (10). The
    `alternatives` are further hypotheses, best first; `decoding.nbest` is their number, the best included. `stops`
    counts what stopped the heads; it is not part of the JSON.
    """

    utterance: int
    text: str
    words: tuple[Word, ...]
    delay_seconds: float
    time_seconds: float
    halts: tuple[int, ...]
    cost_ratio: float
    alternatives: tuple[Alternative, ...] = ()
    stops: Stops = NO_STOPS

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-able values, with its type, times rounded to milliseconds."""
        return _plain(self, "stops") | {"cost_ratio": round(self.cost_ratio, 4)}


@dataclass(frozen=True)
class Endpoint:
    """The end of an utterance by a "pause" or by its "length", or a long "silence" without an utterance.

    `utterance` is the one that ended; for silence, the next one.
    """

    utterance: int
    reason: Reason
    time_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-able values, with its type, the time rounded to milliseconds."""
        return _plain(self)


@dataclass(frozen=True)
class Attention:
    """The attention weights of the heads of the highest layer for a token, and where each head stopped.

    `weights` holds for each head its weights of the frames from `start_seconds` on, each `frame_seconds` long; weights
    of frames before and after them are at most 0.01. `halts_seconds` is for each head the end of the last frame that
    it consumed. All times are seconds of the stream.
    """

    utterance: int
    number: int  # of the token in its utterance, from 0
    token: str
    start_seconds: float
    frame_seconds: float
    weights: tuple[tuple[float, ...], ...]
    halts_seconds: tuple[float, ...]
    time_seconds: float  # the audio time after which this event was possible

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-able values, with its type, times rounded to milliseconds."""
        return _plain(self)


Text: TypeAlias = Partial | Final  # events that hold text
Event: TypeAlias = Text | Endpoint | Attention


def _plain(event: Any, left_out: str = "") -> dict[str, Any]:
    """The type and the fields of an event, except `left_out`, as JSON-able values."""
    fields: dict[str, Any] = rounded(asdict(event))
    fields.pop(left_out, None)
    return {"type": type(event).__name__.lower(), **fields}


def rounded(value: Any, digits: int = 3) -> Any:
    """JSON-able values: tuples as lists, floats with this number of decimals."""
    if isinstance(value, dict):
        return {name: rounded(part, digits) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part, digits) for part in value]
    return round(value, digits) if isinstance(value, float) else value
