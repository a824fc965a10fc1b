"""The WebSocket handler: connects a WebSocket with a protocol until one of them ends the stream.

The next message is read only after the reply to the last one is sent. A client that sends faster than the server
recognises is slowed down by TCP and uses no memory here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import NamedTuple, Protocol, TypeAlias

from starlette.websockets import WebSocket, WebSocketDisconnect

from headsync.events import Event
from headsync.server.access_log import note, note_stream, request_id
from headsync.server.app_state import AppState
from headsync.server.errors import NORMAL, StreamError, internal_error
from headsync.server.pcm_stream import Usage
from headsync.server.protocol import Reply

log = logging.getLogger("headsync.server")

Received: TypeAlias = str | bytes | StreamError | None  # a message, an error, or None when the client has disconnected


class StreamProtocol(Protocol):
    """A protocol without sockets: messages in, replies out."""

    name: str

    @property
    def usage(self) -> Usage: ...

    def opening(self) -> Reply: ...

    def receive(self, message: str | bytes) -> Reply: ...

    def end(self, error: StreamError) -> Reply: ...


class EncodedReply(NamedTuple):
    """A reply as text frames."""

    frames: list[str]
    close_code: int | None
    events: tuple[Event, ...]


async def handle_websocket(websocket: WebSocket, protocol: StreamProtocol, state: AppState) -> None:
    """Serve one stream from its first message to its last."""
    await websocket.accept()
    idle_seconds = state.limits.idle_seconds
    try:
        if rejection := state.limiter.rejection:
            raise rejection
        opening = _encode(protocol.opening())
        if await _send(websocket, opening, idle_seconds) is not None or opening.close_code is not None:
            return
        first = await _receive(websocket, idle_seconds)  # a silent client occupies no slot
        with state.limiter.slot(), state.metrics.open_streams.labels(protocol.name).track_inprogress():
            outcome = await _exchange(websocket, protocol, state, first)
            state.metrics.observe_end(protocol.name, outcome, *protocol.usage)
            note_stream(websocket.scope, protocol.name, outcome, *protocol.usage)
    except StreamError as rejection:
        state.metrics.count_rejection(rejection.code)
        note(websocket.scope, stream=protocol.name, outcome=rejection.code)
        await _send(websocket, _encode(protocol.end(rejection)), idle_seconds)


async def _exchange(websocket: WebSocket, protocol: StreamProtocol, state: AppState, first: Received) -> str:
    """Answer message by message; returns the outcome for the metrics."""
    message = first
    while message is not None:
        start = time.perf_counter()
        reply = await _reply(protocol, message, state, request_id(websocket.scope))
        if (failure := await _send(websocket, reply, state.limits.idle_seconds)) is not None:
            return failure
        state.metrics.observe_events(reply.events)
        if reply.events:
            state.metrics.added_delay.observe(time.perf_counter() - start)
        if reply.close_code is not None:
            return "done" if reply.close_code == NORMAL else "error"
        message = await _receive(websocket, state.limits.idle_seconds)
    return "disconnected"


async def _receive(websocket: WebSocket, idle_seconds: float) -> Received:
    try:
        async with asyncio.timeout(idle_seconds):
            message = await websocket.receive()
    except TimeoutError:
        return StreamError("idle", f"No message arrived for {idle_seconds:g} s; send audio during silence as well.")
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    return message["bytes"] if text is None else text


async def _reply(
    protocol: StreamProtocol, message: str | bytes | StreamError, state: AppState, stream_id: str
) -> EncodedReply:
    """The protocol's reply. Any exception is a fault of the server and ends this stream alone."""
    try:
        if isinstance(message, StreamError):
            return await state.run_in_thread(lambda: _encode(protocol.end(message)))
        return await state.run_in_thread(lambda: _encode(protocol.receive(message)))
    except Exception:
        log.exception("a stream failed", extra={"fields": {"id": stream_id}})
        return _encode(protocol.end(internal_error()))


def _encode(reply: Reply) -> EncodedReply:
    frames = [json.dumps(message, ensure_ascii=False, separators=(",", ":")) for message in reply.messages]
    for frame in frames:
        frame.encode()  # raises here, where the handler can still answer, and not while sending
    return EncodedReply(frames, reply.close_code, reply.events)


async def _send(websocket: WebSocket, reply: EncodedReply, idle_seconds: float) -> str | None:
    """Send the frames and close if the reply says so; returns None, or the outcome if the client did not take it."""
    try:
        async with asyncio.timeout(idle_seconds):
            for frame in reply.frames:
                await websocket.send_text(frame)
            if reply.close_code is not None:
                await websocket.close(reply.close_code)
    except TimeoutError:
        return "slow"  # the connection is dropped
    except WebSocketDisconnect:
        return "disconnected"
    return None
