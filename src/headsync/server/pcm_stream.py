"""The audio of one stream: bytes in any chunks -> samples -> events, with computing time and a length limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headsync.errors import AudioError
from headsync.events import Event
from headsync.server.errors import StreamError

SampleFormat: TypeAlias = Literal["pcm16", "float32"]
SAMPLE_TYPES: dict[str, np.dtype[Any]] = {"pcm16": np.dtype("<i2"), "float32": np.dtype("<f4")}


class AudioSession(Protocol):
    """The methods of a recogniser's session that a stream uses."""

    def push(self, samples: npt.ArrayLike, sample_rate: int) -> list[Event]: ...

    def finish(self) -> list[Event]: ...

    @property
    def audio_seconds(self) -> float: ...


class Usage(NamedTuple):
    """Audio received from a client, and the computing time of its recognition."""

    audio_seconds: float = 0.0
    computing_seconds: float = 0.0

    def plus(self, stream: PcmStream | None) -> Usage:
        if stream is None:
            return self
        return Usage(self.audio_seconds + stream.audio_seconds, self.computing_seconds + stream.computing_seconds)


class PcmStream:
    """A session that accepts bytes. An incomplete sample is kept until the rest of it arrives."""

    def __init__(
        self, session: AudioSession, sample_rate: int, format: SampleFormat = "pcm16", max_seconds: float = math.inf
    ) -> None:
        self._session, self._rate, self._dtype = session, sample_rate, SAMPLE_TYPES[format]
        self._max_seconds = max_seconds
        self._incomplete = b""
        self.computing_seconds = 0.0
        self.push_samples(np.zeros(0, np.float32))  # raises for an invalid sample rate before audio arrives

    @property
    def audio_seconds(self) -> float:
        return self._session.audio_seconds

    @property
    def length_error(self) -> StreamError | None:
        """The error for a stream that is longer than the limit; None within the limit."""
        if self.audio_seconds <= self._max_seconds:
            return None
        return StreamError(
            "too-long", f"The stream is longer than the limit of {self._max_seconds:g} s; open another one."
        )

    def push(self, data: bytes) -> list[Event]:
        data = self._incomplete + data
        complete = len(data) - len(data) % self._dtype.itemsize
        self._incomplete = data[complete:]
        return self.push_samples(np.frombuffer(data[:complete], self._dtype))

    def push_samples(self, samples: npt.NDArray[np.float32 | np.int16]) -> list[Event]:
        return self._timed(lambda: self._session.push(samples, self._rate))

    def finish(self) -> list[Event]:
        """The last events. An incomplete sample is dropped."""
        return self._timed(self._session.finish)

    def _timed(self, call: Callable[[], list[Event]]) -> list[Event]:
        start = time.perf_counter()
        try:
            return call()
        except AudioError as error:
            raise StreamError("audio", str(error)) from None
        finally:
            self.computing_seconds += time.perf_counter() - start
