"""All that the routes of one process share, and the threads that streams work in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headsync.server.admission import Admission
from headsync.server.hearing import Session
from headsync.server.limits import Limits
from headsync.server.metrics import Metrics
from headsync.server.protocol import Hotwords
from headsync.server.service import Service

T = TypeVar("T")


class House:
    """One server process."""

    def __init__(self, service: Service, limits: Limits, token: str | None) -> None:
        self.service, self.limits, self.token = service, limits, token
        self.admission, self.metrics = Admission(limits.streams), Metrics()
        # A thread for each stream at work: those that wait for the network are what a batch is made of.
        self._threads = ThreadPoolExecutor(limits.streams, thread_name_prefix="stream")
        if service.batching is not None:
            service.batching.observe = self.metrics.batched

    def session(self, settings: Mapping[str, Any], hotwords: Hotwords) -> Session:
        """A new stream of the model."""
        return self.service.session(settings, hotwords, self.limits)

    async def aside(self, work: Callable[..., T], *arguments: Any) -> T:
        """Compute in a thread, while other streams go on."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
