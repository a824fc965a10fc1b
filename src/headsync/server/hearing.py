"""One stream's sound: bytes in any cutting become samples, samples events; with a stopwatch and a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headsync.errors import AudioError
from headsync.events import Event
from headsync.server.trouble import StreamError

Format: TypeAlias = Literal["pcm16", "float32"]
TYPES: dict[str, np.dtype[Any]] = {"pcm16": np.dtype("<i2"), "float32": np.dtype("<f4")}


class Session(Protocol):
    """A stream of a recogniser."""

    def push(self, samples: npt.ArrayLike, sample_rate: int) -> list[Event]: ...

    def finish(self) -> list[Event]: ...

    @property
    def audio_seconds(self) -> float: ...


class Hearing:
    """A session that is fed with bytes; half a sample waits for its other half."""

    def __init__(
        self,
        session: Session,
        sample_rate: int,
        format: Format = "pcm16",
        most_seconds: float = float("inf"),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session, self._rate, self._type, self._clock = session, sample_rate, TYPES[format], clock
        self._most_seconds = most_seconds
        self._rest = b""
        self.computing_seconds = 0.0
        self.listen(np.zeros(0, np.float32))  # a rate that cannot be is told before sound is sent

    @property
    def audio_seconds(self) -> float:
        return self._session.audio_seconds

    @property
    def too_long(self) -> StreamError | None:
        """What to say of a stream that has gone beyond the limit."""
        if self.audio_seconds <= self._most_seconds:
            return None
        return StreamError("too-long", f"A stream may last {self._most_seconds:g} s here; open another one for more.")

    def push(self, data: bytes) -> list[Event]:
        """More bytes, of any number."""
        data = self._rest + data
        whole = len(data) - len(data) % self._type.itemsize
        self._rest = data[whole:]
        return self.listen(np.frombuffer(data[:whole], self._type))

    def listen(self, samples: npt.NDArray[np.float32 | np.int16]) -> list[Event]:
        """More samples."""
        return self._timed(lambda: self._session.push(samples, self._rate))

    def finish(self) -> list[Event]:
        """No more will come; half a sample is dropped."""
        return self._timed(self._session.finish)

    def _timed(self, call: Callable[[], list[Event]]) -> list[Event]:
        start = self._clock()
        try:
            return call()
        except AudioError as error:
            raise StreamError("audio", str(error)) from None
        finally:
            self.computing_seconds += self._clock() - start
