"""The handler of live streams: connects a client with a protocol until one of them ends the stream.

The next message is read only after the reply to the last one is sent. A client that sends faster than the server
recognises is slowed down by TCP and uses no memory here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple, Protocol, TypeVar

from starlette.types import Scope

from headsync.events import Event
from headsync.server.access_log import note, note_stream, request_id
from headsync.server.app_state import AppState
from headsync.server.base_stream import BaseStream, Reply
from headsync.server.errors import NORMAL, StreamError, internal_error
from headsync.server.limits import CLIENTS

log = logging.getLogger("headsync.server")

M = TypeVar("M")  # the messages of a client
M_co = TypeVar("M_co", covariant=True)


class Connection(Protocol[M_co]):
    """A client's connection. Sending to a client that is gone raises ConnectionError."""

    @property
    def scope(self) -> Scope:
        """The ASGI scope, which holds the access log entry."""

    async def accept(self) -> None: ...

    async def receive(self) -> M_co | None:
        """The next message; None when the client has disconnected. Raises StreamError for a malformed one."""

    def encode(self, message: dict[str, Any]) -> bytes: ...

    async def send(self, frame: bytes) -> None: ...

    async def close(self, code: int, reason: str = "") -> None: ...


class EncodedReply(NamedTuple):
    frames: list[bytes]
    close_code: int | None
    close_reason: str
    events: tuple[Event, ...]


async def handle_stream(connection: Connection[M], protocol: BaseStream[M], state: AppState) -> None:
    """Serve one stream from its first message to its last."""
    idle_seconds = state.limits.idle_seconds
    clients = connection.scope.get(CLIENTS, ())
    rejection = state.limiter.rejection(clients)  # a drain that begins after this line waits for the first message
    try:
        with state.limiter.count_client(clients):
            with state.limiter.silence():  # a silent client occupies no slot
                await connection.accept()
                if rejection:
                    raise rejection
                opening = _encode(connection, protocol.opening())
                if await _send(connection, opening, idle_seconds) is not None or opening.close_code is not None:
                    return
                first = await _receive(connection, idle_seconds)
            with state.limiter.slot(), state.metrics.open_streams.labels(protocol.name).track_inprogress():
                outcome = await _exchange(connection, protocol, state, first)
                state.metrics.observe_end(protocol.name, outcome, *protocol.usage)
                note_stream(connection.scope, protocol.name, outcome, *protocol.usage)
    except StreamError as error:
        state.metrics.count_rejection(error.code)
        note(connection.scope, stream=protocol.name, outcome=error.code)
        await _send(connection, _encode(connection, protocol.end(error)), idle_seconds)


async def _exchange(
    connection: Connection[M], protocol: BaseStream[M], state: AppState, first: M | StreamError | None
) -> str:
    """Answer message by message; returns the outcome for the metrics."""
    message = first
    while message is not None:
        start = time.perf_counter()
        reply = await _reply(connection, protocol, message, state)
        if (failure := await _send(connection, reply, state.limits.idle_seconds)) is not None:
            return failure
        state.metrics.observe_events(reply.events)
        if reply.events:
            state.metrics.added_delay.observe(time.perf_counter() - start)
        if reply.close_code is not None:
            return "done" if reply.close_code == NORMAL else "error"
        message = await _receive(connection, state.limits.idle_seconds)
    return "disconnected"


async def _receive(connection: Connection[M], idle_seconds: float) -> M | StreamError | None:
    """A message, an error, or None when the client has disconnected."""
    try:
        async with asyncio.timeout(idle_seconds):
            return await connection.receive()
    except TimeoutError:
        return StreamError("idle", f"No message arrived for {idle_seconds:g} s; send audio during silence as well.")
    except StreamError as error:
        return error


async def _reply(
    connection: Connection[M], protocol: BaseStream[M], message: M | StreamError, state: AppState
) -> EncodedReply:
    """The protocol's reply. Any exception is a fault of the server and ends this stream alone."""
    try:
        if isinstance(message, StreamError):
            return await state.run_in_thread(lambda: _encode(connection, protocol.end(message)))
        return await state.run_in_thread(lambda: _encode(connection, protocol.receive(message)))
    except Exception:
        log.exception("a stream failed", extra={"fields": {"id": request_id(connection.scope)}})
        return _encode(connection, protocol.end(internal_error()))


def _encode(connection: Connection[M], reply: Reply) -> EncodedReply:
    """Encode a reply before sending, so that the handler can still answer if UTF-8 cannot encode its text."""
    frames = [connection.encode(message) for message in reply.messages]
    return EncodedReply(frames, reply.close_code, reply.close_reason, reply.events)


async def _send(connection: Connection[M], reply: EncodedReply, idle_seconds: float) -> str | None:
    """Send the frames, and close if the reply has a close code; returns the outcome if sending failed, else None."""
    try:
        async with asyncio.timeout(idle_seconds):
            for frame in reply.frames:
                await connection.send(frame)
            if reply.close_code is not None:
                await connection.close(reply.close_code, reply.close_reason)
    except TimeoutError:
        return "slow"  # the connection is dropped
    except ConnectionError:
        return "disconnected"
    return None
