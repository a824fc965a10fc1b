"""What is counted, for Prometheus. With several processes the figures of all are added up."""

from __future__ import annotations

import os
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from headsync.events import Event, Partial

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where processes share their figures

DELAYS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
FACTORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The figures of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        if SHARED_FOLDER not in os.environ:
            ProcessCollector(registry=self._registry)
        self.streams = self._gauge("streams", "Streams that are open", "protocol")
        self.waiting = self._gauge("waiting_calls", "Calls that wait for the network")
        self.ended = self._counter("ended_streams", "Streams by how they ended", "protocol", "how")
        self.refused = self._counter("refused", "Streams and requests that were refused", "why")
        self.audio = self._counter("audio_seconds", "Sound heard")
        self.computing = self._counter("computing_seconds", "Time at it, waiting included")
        self.factor = self._histogram(
            "real_time_factor", "Seconds of computing per second of sound, by stream", FACTORS
        )
        self.added = self._histogram("added_delay_seconds", "From sound taken to its events sent", DELAYS)
        self.delay = self._histogram(
            "word_delay_seconds", "From the end of a word to an event with it, in sound", DELAYS
        )
        self.batch = self._histogram("batch_calls", "Calls that went through the network together", BATCHES)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"headsync_{name}", meaning, labels, registry=self._registry, multiprocess_mode="livesum")

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"headsync_{name}", meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"headsync_{name}", meaning, registry=self._registry, buckets=buckets)

    def heard(self, events: Sequence[Event]) -> None:
        """Note the delay of new words."""
        for event in events:
            if isinstance(event, Partial) and event.words:
                self.delay.observe(event.delay_seconds)

    def batched(self, calls: int, waiting: int) -> None:
        """Note that so many calls go through the network together, and so many are left."""
        self.batch.observe(calls)
        self.waiting.set(waiting)

    def finished(self, protocol: str, how: str, audio_seconds: float, computing_seconds: float) -> None:
        """Note how a stream went."""
        self.ended.labels(protocol, how).inc()
        self.audio.inc(audio_seconds)
        self.computing.inc(computing_seconds)
        if audio_seconds:
            self.factor.observe(computing_seconds / audio_seconds)

    def page(self) -> bytes:
        """All of it, as Prometheus reads it."""
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)
