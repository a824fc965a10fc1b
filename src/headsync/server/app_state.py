"""State shared by all routes of one process: models, limits, metrics, and the threads of recognition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headsync.errors import ConfigError
from headsync.server.base_stream import SessionOptions
from headsync.server.errors import unknown_model
from headsync.server.limits import ConnectionRate, Limits, StreamLimiter
from headsync.server.metrics import Metrics
from headsync.server.model_service import ModelService
from headsync.server.pcm_stream import AudioSession

T = TypeVar("T")


@dataclass(frozen=True)
class Access:
    origins: tuple[str, ...] = ()  # whose pages may use the server, beside its own
    aliases: Mapping[str, str] = field(default_factory=dict)  # further names of models


class AppState:
    def __init__(
        self,
        services: Sequence[ModelService],
        limits: Limits,
        token: str | None = None,  # or several, separated by spaces
        access: Access = Access(),  # noqa: B008
    ) -> None:
        self.services = {service.name: service for service in services}  # by the names that clients use
        self.limits, self.token, self.access = limits, token, access
        for alias, model in access.aliases.items():
            if model not in self.services or alias in self.services:
                served = ", ".join(self.services)
                raise ConfigError(f"--alias {alias}={model}: the alias must be new and the model one of {served}")
        self.limiter, self.metrics = StreamLimiter(limits), Metrics()
        self.connection_rate = ConnectionRate(limits.client_connections)
        self._threads = _start_threads(limits.streams)
        for service in services:
            if service.batching is not None:
                service.batching.observe = self.metrics.observe_batch

    def service(self, name: str = "") -> ModelService:
        """The model of this name; without a name, the first."""
        name = self.access.aliases.get(name, name)
        found = self.services.get(name or next(iter(self.services)))
        if found is None:
            raise unknown_model(name, list(self.services))
        return found

    def open_session(self, options: SessionOptions = SessionOptions()) -> AudioSession:  # noqa: B008
        return self.service(options.model).open_session(options, self.limits)

    async def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _start_threads(count: int) -> ThreadPoolExecutor:
    """One thread for each stream: a batch consists of the calls of threads that wait for the network.

    All are started now: if memory is exhausted, `Thread.start` may wait forever, and the event loop with it.
    """
    threads, all_started = ThreadPoolExecutor(count, thread_name_prefix="stream"), threading.Barrier(count)
    wait([threads.submit(all_started.wait) for _ in range(count)])
    return threads
