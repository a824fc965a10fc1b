"""Real servers on free ports, and a client of a few lines."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import websockets

from headsync.server.app_state import Access, AppState
from headsync.server.draining_server import DrainingServer
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from headsync.server.single_process import build_server


@dataclass(frozen=True)
class Running:
    """A server at work in a thread."""

    state: AppState
    server: DrainingServer
    port: int
    wyoming: int  # port of the Wyoming protocol

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ws(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.port}{path}"


class FakeService:
    """Base of services without a model; a subclass has a name and `open_session`."""

    name = "fake"
    created, batching, description, vocabulary, budget = 0, None, None, None, None
    languages: tuple[str, ...] = ()


@contextmanager
def run(
    service: ModelService | list[ModelService],
    limits: Limits,
    token: str | None = None,
    port: int = 0,
    access: Access = Access(),  # noqa: B008
) -> Iterator[Running]:
    services = service if isinstance(service, list) else [service]
    state, ready = AppState(services, limits, token, access), threading.Event()
    with socket.create_server(("127.0.0.1", port)) as listener, socket.create_server(("127.0.0.1", 0)) as wyoming:
        server = build_server(state, ready.set, wyoming)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        assert ready.wait(60)
        try:
            yield Running(state, server, listener.getsockname()[1], wyoming.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def started(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`headsync serve` on a free port, and the line with its addresses."""
    model = [] if "--model" in options else ["--model", "digits-en"]
    words = [sys.executable, "-m", "headsync", "serve", "--port", "0", *model, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


@contextmanager
def command(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`headsync serve` on a free port, and its address without the scheme."""
    with started(*options) as (process, line):
        found = re.search(r"https?://(127\.0\.0\.1:\d+)", line)
        assert found, line
        yield process, found[1]


async def stream(
    address: str, samples: np.ndarray, rate: int = 16_000, piece: int = 3200, **fields: Any
) -> list[dict[str, Any]]:
    """All messages of a server to a client of `/v1/stream` that sends as fast as it can."""
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
