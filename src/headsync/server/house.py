"""All that the routes of one process share, and the threads that streams work in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headsync.server.admission import Admission
from headsync.server.hearing import Session
from headsync.server.limits import Limits
from headsync.server.metrics import Metrics
from headsync.server.service import Service
from headsync.server.trouble import no_model
from headsync.server.wishes import Wishes

T = TypeVar("T")


class House:
    """One server process."""

    def __init__(self, services: Sequence[Service], limits: Limits, token: str | None) -> None:
        self.services = {service.name: service for service in services}  # by the names that clients use
        self.limits, self.token = limits, token
        self.admission, self.metrics = Admission(limits.streams), Metrics()
        # A thread for each stream at work: those that wait for the network are what a batch is made of.
        self._threads = ThreadPoolExecutor(limits.streams, thread_name_prefix="stream")
        for service in services:
            if service.batching is not None:
                service.batching.observe = self.metrics.batched

    def service(self, name: str = "") -> Service:
        """The model of that name; without one, the first."""
        found = self.services.get(name or next(iter(self.services)))
        if found is None:
            raise no_model(name, list(self.services))
        return found

    def session(self, wishes: Wishes = Wishes()) -> Session:  # noqa: B008
        """A new stream of a model."""
        return self.service(wishes.model).session(wishes, self.limits)

    async def aside(self, work: Callable[..., T], *arguments: Any) -> T:
        """Compute in a thread, while other streams go on."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
