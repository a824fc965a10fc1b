"""A session with a stopwatch: keeps the events, and the seconds of computing against the seconds of audio."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headsync.events import Event, Final
from headsync.measure.latency import word_delays


class Stream(Protocol):
    """What is measured: one stream of a recogniser."""

    def push(self, samples: NDArray[np.float32], sample_rate: int) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class Listener(Protocol):
    """Whatever opens streams; `headsync.Recognizer` is one."""

    def session(self) -> Stream: ...


class TimedSession:
    """A new stream of a recogniser; used like one, and afterwards it knows how it went."""

    def __init__(self, recognizer: Listener, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = recognizer.session()
        self._clock = clock
        self.events: list[Event] = []
        self.audio_seconds = 0.0
        self.computing_seconds = 0.0

    def push(self, samples: NDArray[np.float32], sample_rate: int) -> list[Event]:
        """Hand a chunk on to the stream."""
        self.audio_seconds += len(samples) / sample_rate
        return self._timed(lambda: self._stream.push(samples, sample_rate))

    def finish(self) -> list[Event]:
        """Tell the stream that nothing more will come."""
        return self._timed(self._stream.finish)

    @property
    def finals(self) -> list[Final]:
        """The utterances that are done."""
        return [event for event in self.events if isinstance(event, Final)]

    @property
    def text(self) -> str:
        """The transcript so far."""
        return " ".join(final.text for final in self.finals if final.text)

    @property
    def delays(self) -> list[float]:
        """The delay of every word, in seconds of audio."""
        return word_delays(self.events)

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing per second of audio; below 1 it keeps up."""
        return self.computing_seconds / self.audio_seconds if self.audio_seconds else 0.0

    def _timed(self, call: Callable[[], list[Event]]) -> list[Event]:
        start = self._clock()
        events = call()
        self.computing_seconds += self._clock() - start
        self.events += events
        return events
