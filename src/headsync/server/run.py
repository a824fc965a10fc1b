"""A server's life: it binds its address, serves in one process or several, and leaves in good order.

On SIGTERM or Ctrl-C a process takes no new streams, finishes the present ones and ends; a second signal ends it at
once. With several processes the first one only watches over the others.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headsync.errors import ConfigError, HeadsyncError
from headsync.server.app import build_app
from headsync.server.house import House
from headsync.server.limits import Limits
from headsync.server.service import ModelChoice, Service

log = logging.getLogger("headsync.server")

READY = "ready"  # what a process says to the watch; anything else is why it cannot start
FORCED_SECONDS = 5  # for connections to close once waiting is over
CLOSE_SECONDS = 10.0  # most, for a client to answer a close


@dataclass(frozen=True)
class Serving:
    """What to serve, where, and to whom."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0: any that is free
    choices: tuple[ModelChoice, ...] = (ModelChoice(),)  # the first is the one that clients get without asking
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    workers: int = 1


def serve(serving: Serving, ready: Callable[[str], None]) -> None:
    """Serve until told to leave; `ready` is told the address once every process has loaded its models."""
    with _bind(serving.host, serving.port) as listener:
        address = _address(serving.host, listener.getsockname()[1])
        if serving.workers == 1:
            work(serving, listener, lambda: ready(address))
        else:
            Watch(serving, listener).run(lambda: ready(address))


def work(serving: Serving, listener: socket.socket, ready: Callable[[], None], watched: bool = False) -> None:
    """Load the model and serve, in this process."""
    house = House(load_services(serving.choices), serving.limits, serving.token)
    build_server(house, ready, watched).run(sockets=[listener])


def load_services(choices: Sequence[ModelChoice]) -> list[Service]:
    """All models; clients call them by the names of their folders, so that no two may have the same."""
    services = [Service.load(choice) for choice in choices]
    names = [service.name for service in services]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'two models are called "{name}", as their folders are; rename one of the folders')
    return services


def build_server(house: House, ready: Callable[[], None], watched: bool = False) -> Departing:
    """The server of one process."""
    config = uvicorn.Config(
        build_app(house),
        http=Impatient,
        ws=Parting,
        ws_max_size=house.limits.message_bytes,
        ws_ping_interval=None,  # pongs queue behind sound; a client that has gone is found by its silence
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,  # addresses may hold tokens
        server_header=False,
        timeout_keep_alive=max(1, round(house.limits.idle_seconds)),
        timeout_graceful_shutdown=FORCED_SECONDS,
    )
    return Departing(config, house, ready, watched)


class Impatient(H11Protocol):
    """A connection is closed on which the head of a request does not come within a while: nothing, or drop by drop."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is here
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._deadline.cancel()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)


class Parting(WebSocketsSansIOProtocol):
    """A WebSocket whose other end has as long to answer a close as to say anything else."""

    def __init__(self, config: uvicorn.Config, **rest: Any) -> None:
        super().__init__(config, **rest)
        self.close_timeout = min(CLOSE_SECONDS, config.timeout_keep_alive)


class Departing(uvicorn.Server):
    """A server that finishes its streams before it leaves."""

    def __init__(self, config: uvicorn.Config, house: House, ready: Callable[[], None], watched: bool) -> None:
        super().__init__(config)
        self._house, self._ready, self._watched = house, ready, watched
        self._deadline = float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            _let_go(listener, self._house.limits.idle_seconds)
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: take no more streams; a second one: leave at once. Of Ctrl-C, the watch tells its processes."""
        if self._watched and sig == signal.SIGINT:
            return
        if self._house.admission.leaving:
            self.should_exit = True
        self.leave()

    def leave(self) -> None:
        """Take no more streams, and end with the last of them."""
        self._house.admission.leaving = True
        self._deadline = min(self._deadline, time.monotonic() + self._house.limits.drain_seconds)

    async def on_tick(self, counter: int) -> bool:
        parent = multiprocessing.parent_process() if self._watched else None
        if parent is not None and not parent.is_alive():
            self.leave()
        if self._house.admission.leaving and (self._house.admission.open == 0 or time.monotonic() > self._deadline):
            self.should_exit = True
        return await super().on_tick(counter)


class Worker:
    """One of several processes, and what it says of itself."""

    def __init__(self, context: SpawnContext, serving: Serving, listener: socket.socket) -> None:
        self._news, tell = context.Pipe(duplex=False)
        self._said: str | None = None
        self.process = context.Process(target=_watched_work, args=(serving, listener, tell))
        self.process.start()
        tell.close()  # the process has its own

    @property
    def said(self) -> str | None:
        """That it is ready, or a sentence why it cannot start; None until it knows."""
        if self._said is None and self._news.poll():
            with suppress(EOFError):  # it died without a word
                self._said = self._news.recv()
        return self._said


class Watch:
    """Several processes on one address; those that die are replaced, once all have been ready."""

    def __init__(self, serving: Serving, listener: socket.socket) -> None:
        self._serving, self._listener = serving, listener
        self._context = multiprocessing.get_context("spawn")
        self._told = self._leaving = False
        self._trouble: str | None = None
        self._workers: list[Worker] = []

    def run(self, ready: Callable[[], None]) -> None:
        """Start them all and stay until the last one has left; what kept one from starting is said once, for all."""
        with tempfile.TemporaryDirectory() as figures:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = figures
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._pass_on)
            for _ in range(self._serving.workers):
                self._start()
            while self._workers:
                wait([worker.process.sentinel for worker in self._workers], timeout=0.2)
                self._look_after()
                if not self._told and not self._leaving and all(worker.said == READY for worker in self._workers):
                    ready()
                    self._told = True
        if self._trouble:
            raise ConfigError(self._trouble)

    def _look_after(self) -> None:
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._workers.remove(worker)
            if self._leaving:
                continue
            if trouble := self._why_not_again(worker):
                self._trouble = trouble
                self._pass_on(signal.SIGTERM, None)
            else:
                log.error("process %s died (%s) and is replaced", worker.process.pid, worker.process.exitcode)
                _forget_figures(worker.process.pid)
                self._start()

    def _why_not_again(self, worker: Worker) -> str | None:
        """Why a process that has died is not to be replaced; None if it is."""
        if worker.said not in (None, READY):
            return worker.said
        if self._told:
            return None
        code = worker.process.exitcode
        return f"one of the processes died ({code}) before all were ready; if memory is short, try fewer --workers"

    def _start(self) -> None:
        self._workers.append(Worker(self._context, self._serving, self._listener))
        if self._leaving:  # since a moment ago
            self._workers[-1].process.terminate()

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        self._leaving = True
        for worker in self._workers:
            worker.process.terminate()


def _watched_work(serving: Serving, listener: socket.socket, news: Connection[str, str]) -> None:
    try:
        work(serving, listener, lambda: news.send(READY), watched=True)
    except HeadsyncError as error:
        news.send(str(error))
        sys.exit(1)


def _forget_figures(pid: int | None) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        where, reason = _address(host, port), str(error.strerror).partition(" (while")[0]
        raise ConfigError(f"{where}: cannot be served ({reason}); choose another --host or --port") from None


def _let_go(listener: socket.socket, idle_seconds: float) -> None:
    """Let the system drop connections whose other end takes nothing, or is no longer there."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * idle_seconds))


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
