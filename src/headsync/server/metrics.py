"""Prometheus metrics. With several processes the figures of all are added up."""

from __future__ import annotations

import os
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from headsync.events import Event, Partial

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # environment variable: the folder through which processes share figures

DELAY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
FACTOR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        if SHARED_FOLDER not in os.environ:
            ProcessCollector(registry=self._registry)
        self.open_streams = self._gauge("streams", "Open streams", "protocol")
        self.waiting_calls = self._gauge("waiting_calls", "Calls waiting for the network")
        self.ended_streams = self._counter("ended_streams", "Streams that ended", "protocol", "outcome")
        self.rejected = self._counter("rejected", "Streams and requests that were rejected", "reason")
        self.audio_seconds = self._counter("audio_seconds", "Audio received, counted when its stream ends")
        self.computing_seconds = self._counter("computing_seconds", "Time spent on it, including waiting for batches")
        self.real_time_factor = self._histogram(
            "real_time_factor", "Computing time per second of audio, by stream", FACTOR_BUCKETS
        )
        self.added_delay = self._histogram(
            "added_delay_seconds", "From audio received to its events sent", DELAY_BUCKETS
        )
        self.word_delay = self._histogram(
            "word_delay_seconds", "From the end of a word to the first event that has it, in audio time", DELAY_BUCKETS
        )
        self.batch_calls = self._histogram("batch_calls", "Calls run in one batch", BATCH_BUCKETS)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"headsync_{name}", description, labels, registry=self._registry, multiprocess_mode="livesum")

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"headsync_{name}", description, labels, registry=self._registry)

    def _histogram(self, name: str, description: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"headsync_{name}", description, registry=self._registry, buckets=buckets)

    def count_rejection(self, reason: str) -> None:
        self.rejected.labels(reason).inc()

    def observe_events(self, events: Sequence[Event]) -> None:
        """Record the delay of new words."""
        for event in events:
            if isinstance(event, Partial) and event.words:
                self.word_delay.observe(event.delay_seconds)

    def observe_batch(self, calls: int, waiting: int) -> None:
        """Record a batch of `calls`, and the calls that still wait."""
        self.batch_calls.observe(calls)
        self.waiting_calls.set(waiting)

    def observe_end(self, protocol: str, outcome: str, audio_seconds: float, computing_seconds: float) -> None:
        self.ended_streams.labels(protocol, outcome).inc()
        self.audio_seconds.inc(audio_seconds)
        self.computing_seconds.inc(computing_seconds)
        if audio_seconds:
            self.real_time_factor.observe(computing_seconds / audio_seconds)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
