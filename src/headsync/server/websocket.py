"""WebSockets as connections of the stream handler."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from headsync.server.app_state import AppState
from headsync.server.base_stream import BaseStream
from headsync.server.errors import api_error
from headsync.server.stream_handler import Connection, handle_stream


class WebSocketConnection:
    """Text messages are JSON, binary messages are audio."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    @property
    def scope(self) -> Scope:
        return self._websocket.scope

    async def accept(self) -> None:
        await self._websocket.accept()

    async def receive(self) -> str | bytes | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    def encode(self, message: dict[str, Any]) -> bytes:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()

    async def send(self, frame: bytes) -> None:
        try:
            await self._websocket.send_text(frame.decode())
        except WebSocketDisconnect:
            raise ConnectionResetError from None

    async def close(self, code: int, reason: str = "") -> None:
        try:
            await self._websocket.close(code, reason)
        except WebSocketDisconnect:
            raise ConnectionResetError from None


async def handle_websocket(websocket: WebSocket, protocol: BaseStream[str | bytes], state: AppState) -> None:
    """Accept a WebSocket and serve its stream. While the server drains, the handshake is answered with 503, so that a
    load balancer tries another server.
    """
    if state.limiter.draining and (rejection := state.limiter.rejection()):
        state.metrics.count_rejection(rejection.code)
        body = api_error(str(rejection), "server_error", rejection.code)
        await websocket.send_denial_response(JSONResponse(body, 503, rejection.retry_header))
        return
    connection: Connection[str | bytes] = WebSocketConnection(websocket)
    await handle_stream(connection, protocol, state)
