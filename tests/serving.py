"""Real servers on free ports, and a client of a few lines."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import websockets

from headsync.server.house import House
from headsync.server.limits import Limits
from headsync.server.run import Departing, build_server
from headsync.server.service import Service


@dataclass(frozen=True)
class Running:
    """A server at work in a thread."""

    house: House
    server: Departing
    port: int

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ws(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.port}{path}"


@contextmanager
def run(service: Service | list[Service], limits: Limits, token: str | None = None, port: int = 0) -> Iterator[Running]:
    services = service if isinstance(service, list) else [service]
    house, ready = House(services, limits, token), threading.Event()
    server = build_server(house, ready.set)
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        assert ready.wait(60)
        try:
            yield Running(house, server, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


async def stream(
    address: str, samples: np.ndarray, rate: int = 16_000, piece: int = 3200, **fields: Any
) -> list[dict[str, Any]]:
    """All messages of a server to a client of `/v1/stream` that sends as fast as it can, to a good end or a bad one."""
    messages: list[dict[str, Any]] = []
    async with websockets.connect(address) as connection:

        async def send() -> None:
            await connection.send(json.dumps({"type": "start", "sample_rate": rate, **fields}))
            data = samples.tobytes()
            for first in range(0, len(data), piece):
                await connection.send(data[first : first + piece])
            await connection.send('{"type": "finish"}')

        sending = asyncio.create_task(send())
        with suppress(websockets.ConnectionClosed):
            async for message in connection:
                messages.append(json.loads(message))
        with suppress(websockets.ConnectionClosed):
            await sending
    return messages


def finals(messages: list[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in messages if message["type"] == "final"]
