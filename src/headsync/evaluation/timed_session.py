"""A session that records its events, and the computing time of each call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headsync.evaluation.latency import TimedEvents, word_delays
from headsync.events import Event, Final


class RecognitionSession(Protocol):
    def push(self, samples: NDArray[np.float32], sample_rate: int) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class SessionFactory(Protocol):
    """Anything that opens streams, such as `headsync.Recognizer`."""

    def session(self) -> RecognitionSession: ...


class TimedSession:
    """`wall_seconds` has for each event the time at which it appears if the audio arrives in real time.

    A call starts when its audio has arrived and the previous call has ended.
    """

    def __init__(self, recognizer: SessionFactory, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = recognizer.session()
        self._clock = clock
        self.events: list[Event] = []
        self._samples, self._rate = 0, 1
        self.computing_seconds = 0.0
        self.wall_seconds: list[float] = []
        self._free_seconds = 0.0  # when the last call ended, in real time

    def push(self, samples: NDArray[np.float32], sample_rate: int) -> list[Event]:
        self._samples, self._rate = self._samples + len(samples), sample_rate
        return self._timed(lambda: self._stream.push(samples, sample_rate))

    def finish(self) -> list[Event]:
        return self._timed(self._stream.finish)

    @property
    def audio_seconds(self) -> float:
        """The audio so far; counted in samples, so chunking does not change it."""
        return self._samples / self._rate

    @property
    def finals(self) -> list[Final]:
        return [event for event in self.events if isinstance(event, Final)]

    @property
    def text(self) -> str:
        return " ".join(final.text for final in self.finals if final.text)

    @property
    def timed_events(self) -> TimedEvents:
        return TimedEvents(self.events, self.audio_seconds, self.wall_seconds)

    @property
    def delays(self) -> list[float]:
        """User-perceived latency of every word by its own end, in seconds of audio."""
        return word_delays(self.events)

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing per second of audio."""
        return self.computing_seconds / self.audio_seconds if self.audio_seconds else 0.0

    def _timed(self, call: Callable[[], list[Event]]) -> list[Event]:
        start = self._clock()
        events = call()
        seconds = self._clock() - start
        self.computing_seconds += seconds
        self._free_seconds = max(self._free_seconds, self.audio_seconds) + seconds
        self.events += events
        self.wall_seconds += [self._free_seconds] * len(events)
        return events
