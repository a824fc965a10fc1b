"""A WebSocket and a protocol brought together: receive, hand over, send, until one of them has had enough.

No message is read before the last one has been answered, so that a client that is faster than the server is slowed
down by its own connection and takes no memory here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol, TypeAlias

from starlette.websockets import WebSocket, WebSocketDisconnect

from headsync.server.hearing import Hearing
from headsync.server.house import House
from headsync.server.protocol import Reply
from headsync.server.trouble import NORMAL, StreamError, internal

log = logging.getLogger("headsync.server")

Received: TypeAlias = str | bytes | StreamError | None  # a message, trouble, or nothing more: the client has gone


class Talk(Protocol):
    """A protocol without sockets."""

    name: str
    hearing: Hearing | None

    def receive(self, message: str | bytes) -> Reply: ...

    def end(self, trouble: StreamError) -> Reply: ...


async def converse(websocket: WebSocket, talk: Talk, house: House) -> None:
    """One stream, from its first message to its last; what is wrong with it is its own trouble alone."""
    await websocket.accept()
    try:
        if refusal := house.admission.refusal:
            raise refusal
        first = await _receive(websocket, house.limits.idle_seconds)  # who says nothing takes nobody's place
        with house.admission.enter(), house.metrics.streams.labels(talk.name).track_inprogress():
            how = await _stream(websocket, talk, house, first)
            seconds = (talk.hearing.audio_seconds, talk.hearing.computing_seconds) if talk.hearing else (0.0, 0.0)
            house.metrics.finished(talk.name, how, *seconds)
    except StreamError as refusal:
        house.metrics.refused.labels(refusal.code).inc()
        await _send(websocket, talk.end(refusal), house.limits.idle_seconds)


async def _stream(websocket: WebSocket, talk: Talk, house: House, first: Received) -> str:
    """Answer message by message; tells how the stream ended."""
    message = first
    while message is not None:
        start = time.perf_counter()
        reply = await _reply(talk, message, house)
        if (sent := await _send(websocket, reply, house.limits.idle_seconds)) is not None:
            return sent
        house.metrics.heard(reply.events)
        if reply.events:
            house.metrics.added.observe(time.perf_counter() - start)
        if reply.close is not None:
            return "done" if reply.close == NORMAL else "error"
        message = await _receive(websocket, house.limits.idle_seconds)
    return "gone"


async def _receive(websocket: WebSocket, idle_seconds: float) -> Received:
    """The next message; trouble if none comes for too long, and None if the client has gone."""
    try:
        async with asyncio.timeout(idle_seconds):
            message = await websocket.receive()
    except TimeoutError:
        return StreamError(
            "idle", f"Nothing came for {idle_seconds:g} s; a stream that is silent must still send sound."
        )
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    return message["bytes"] if text is None else text


async def _reply(talk: Talk, message: str | bytes | StreamError, house: House) -> Reply:
    try:
        if isinstance(message, StreamError):
            return await house.aside(talk.end, message)
        return await house.aside(talk.receive, message)
    except Exception:  # a fault of ours must not reach other streams
        log.exception("a stream failed")
        return talk.end(internal())


async def _send(websocket: WebSocket, reply: Reply, idle_seconds: float) -> str | None:
    """Send and close; None if all went well, else why not."""
    try:
        async with asyncio.timeout(idle_seconds):
            for message in reply.messages:
                await websocket.send_json(message)
            if reply.close is not None:
                await websocket.close(reply.close)
    except TimeoutError:
        return "slow"  # it does not take what it is sent; the connection is dropped
    except WebSocketDisconnect:
        return "gone"
    return None
