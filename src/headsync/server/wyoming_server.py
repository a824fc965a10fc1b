"""TCP connections of the Wyoming protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from headsync.server.access_log import logged
from headsync.server.app_state import AppState
from headsync.server.errors import StreamError
from headsync.server.limits import CLIENTS, ConnectionRate, address_client
from headsync.server.stream_handler import handle_stream
from headsync.server.wyoming import WyomingEvent, WyomingStream, build_info, encode_event, parse_header

HEADER_BYTES = 1 << 16  # longest first line of an event
CLOSE_SECONDS = 5.0  # for a client to receive the last data


class TcpConnection:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        max_bytes: int,
        rate: ConnectionRate = ConnectionRate(None),  # noqa: B008
    ) -> None:
        self._reader, self._writer, self._max_bytes, self._rate = reader, writer, max_bytes, rate
        peer: tuple[Any, ...] = writer.get_extra_info("peername") or ("", 0)  # None after a reset
        self.address, self.port = peer[:2]
        self.scope: dict[str, Any] = {CLIENTS: (address_client(self.address),)}

    async def accept(self) -> None:
        """TCP has accepted the connection; raises StreamError for a client that connects too often."""
        self._rate.connect(*self.scope[CLIENTS])

    async def receive(self) -> WyomingEvent | None:
        try:
            header = parse_header(await self._reader.readuntil(b"\n"), self._max_bytes)
            data = await self._reader.readexactly(header.data_bytes)
            return header.event(data, await self._reader.readexactly(header.payload_bytes))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except asyncio.LimitOverrunError:
            raise StreamError("message", f"The first line of an event exceeds {HEADER_BYTES} bytes.") from None

    def encode(self, message: dict[str, Any]) -> bytes:
        return encode_event(message)

    async def send(self, frame: bytes) -> None:
        self._writer.write(frame)
        await self._writer.drain()

    async def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection; the protocol has no close codes."""
        self._writer.close()
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()


@asynccontextmanager
async def wyoming_server(state: AppState, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the Wyoming protocol inside the block; connections that are open at its end are closed."""
    info = build_info(state.services.values())
    tasks: set[asyncio.Task[None]] = set()

    def can_write(model: str, phrase: str) -> bool:
        return state.service(model).can_write(phrase)

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = TcpConnection(reader, writer, state.limits.message_bytes, state.connection_rate)
        with logged(connection.scope, client=f"{connection.address}:{connection.port}", method="WYOMING"):
            try:
                await handle_stream(connection, WyomingStream(info, state.open_session, can_write, state.limits), state)
            finally:
                await connection.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve_client(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async with await asyncio.start_server(accept, sock=listener, limit=HEADER_BYTES):
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
