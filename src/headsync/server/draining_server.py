"""uvicorn with the timeouts that it lacks, and with a drain: on SIGTERM or Ctrl-C it accepts no new streams, finishes
the open ones, and stops. A second signal stops it at once.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headsync.server.app_state import AppState

MAX_CLOSE_SECONDS = 10.0  # for a client to answer a close frame
FIRST_MESSAGE_SECONDS = 2.0  # for connections that were accepted before the drain to send their first message


class HeadTimeoutHttp(H11Protocol):
    """Closes a connection on which a request head does not arrive completely within the idle limit."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is complete
            self._head_timer.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._head_timer.cancel()
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)


class CloseTimeoutWebSocket(WebSocketsSansIOProtocol):
    """Limits the time in which a client must answer a close frame, and denies handshakes without an error log."""

    def __init__(self, config: uvicorn.Config, **rest: Any) -> None:
        super().__init__(config, **rest)
        self.close_timeout = min(MAX_CLOSE_SECONDS, config.timeout_keep_alive)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # uvicorn would log a denied handshake as an error


class DrainingServer(uvicorn.Server):
    """A server that finishes open streams before it stops."""

    def __init__(self, config: uvicorn.Config, state: AppState, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._state, self._ready = state, ready
        self._deadline = self._first_message_deadline = float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: drop connections whose client does not acknowledge data
                milliseconds = round(1000 * self._state.limits.idle_seconds)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the drain, the second one stops the server."""
        if self._state.limiter.draining:
            self.should_exit = True
        self.drain()

    def drain(self) -> None:
        """Accept no new streams, and stop when the last one has finished or the time is up."""
        now, self._state.limiter.draining = time.monotonic(), True
        self._deadline = min(self._deadline, now + self._state.limits.drain_seconds)
        self._first_message_deadline = min(self._first_message_deadline, now + FIRST_MESSAGE_SECONDS)

    async def on_tick(self, counter: int) -> bool:
        supervisor = multiprocessing.parent_process()
        if supervisor is not None and not supervisor.is_alive():
            self.drain()
        if self._state.limiter.draining and self._is_drained():
            self.should_exit = True
        return await super().on_tick(counter)

    def _is_drained(self) -> bool:
        limiter, now = self._state.limiter, time.monotonic()
        may_start = limiter.silent_connections > 0 and now < self._first_message_deadline
        return now > self._deadline or (limiter.open_streams == 0 and not may_start)
