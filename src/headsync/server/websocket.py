"""WebSockets as connections of the stream handler."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from headsync.server.app_state import AppState
from headsync.server.stream_handler import Connection, StreamProtocol, handle_stream


class WebSocketConnection:
    """Text messages are JSON, binary messages are audio."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    @property
    def scope(self) -> Scope:
        return self._websocket.scope

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

    async def close(self, code: int) -> None:
        try:
            await self._websocket.close(code)
        except WebSocketDisconnect:
            raise ConnectionResetError from None


async def handle_websocket(websocket: WebSocket, protocol: StreamProtocol[str | bytes], state: AppState) -> None:
    """Accept a WebSocket and serve its stream."""
    await websocket.accept()
    connection: Connection[str | bytes] = WebSocketConnection(websocket)
    await handle_stream(connection, protocol, state)
