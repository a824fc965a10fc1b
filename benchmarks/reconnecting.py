"""Streams in real time that survive lost connections, as the web page does: a new connection continues after the last
final text. `network_faults.py` starts this in the network namespace of the clients.

    python benchmarks/reconnecting.py HOST:PORT SCRIPTS.npz --streams 20

SCRIPTS.npz has one array of samples (16-bit, 16 kHz) for each script; stream n uses script n modulo their number. The
output is one JSON object per stream: its number, and of each connection the first sample and the final texts. The last
line is the number of streams that the server still counts as open when all streams have ended; -1: it does not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import websockets

RATE = 16_000
PIECE = RATE // 10
QUIET_SECONDS = 3.0  # of audio sent again after a pause, for the beginning of a word
TAIL_SECONDS = 0.1  # of audio after the last word of a final text
SILENT_SECONDS = 8.0  # without a message of the server: the connection is lost
RETRY_SECONDS = 1.0
GIVE_UP_SECONDS = 300.0
FREED_SECONDS = 60.0  # for the server to notice that connections are lost


class LostError(Exception):
    """The connection ended before the stream."""


@dataclass
class Stream:
    """One stream: its audio, and what each connection recognised."""

    samples: np.ndarray
    start: float  # when the audio begins
    confirmed: int = 0  # audio before this sample need not be sent again
    speaking: bool = False
    connections: list[tuple[int, list[str]]] = field(default_factory=list)

    async def run(self, host: str) -> bool:
        """Whether the stream was finished."""
        while time.monotonic() < self.start + len(self.samples) / RATE + GIVE_UP_SECONDS:
            try:
                await self._connect(host)
                return True
            except (LostError, websockets.WebSocketException, OSError, TimeoutError) as error:
                print(f"a connection was lost: {error!r}", file=sys.stderr)
            await asyncio.sleep(RETRY_SECONDS)
        return False

    async def _connect(self, host: str) -> None:
        address = f"ws://{host}/v1/stream"
        options: dict[str, Any] = {"compression": None, "ping_interval": None}
        async with websockets.connect(address, open_timeout=SILENT_SECONDS, close_timeout=1, **options) as connection:
            await connection.send('{"type": "start", "progress": true}')
            await self._receive(connection)  # ready
            base, texts = self.confirmed, list[str]()
            self.connections.append((base, texts))
            self.speaking = False
            sending = asyncio.create_task(self._send(connection, base))
            try:
                while (message := await self._receive(connection))["type"] != "done":
                    self._take(message, base, texts)
            finally:
                sending.cancel()

    async def _receive(self, connection: Any) -> dict[str, Any]:
        async with asyncio.timeout(SILENT_SECONDS):
            message: dict[str, Any] = json.loads(await connection.recv())
        if message["type"] == "error":
            raise LostError(message["message"])
        return message

    def _take(self, message: dict[str, Any], base: int, texts: list[str]) -> None:
        if message["type"] == "partial":
            self.speaking = True
        elif message["type"] == "final":
            texts.append(message["text"])
            self.speaking = False
            if message["words"]:
                self._confirm(base, message["words"][-1]["end_seconds"] + TAIL_SECONDS)
        elif message["type"] == "progress" and not self.speaking:
            self._confirm(base, message["audio_seconds"] - QUIET_SECONDS)

    def _confirm(self, base: int, seconds: float) -> None:
        self.confirmed = max(self.confirmed, base + int(seconds * RATE))

    async def _send(self, connection: Any, base: int) -> None:
        for first in range(base, len(self.samples), PIECE):
            due = self.start + (first + PIECE) / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await connection.send(self.samples[first : first + PIECE].tobytes())
        await connection.send('{"type": "finish"}')


def open_streams(host: str) -> float:
    with urllib.request.urlopen(f"http://{host}/metrics", timeout=5) as answer:
        return sum(map(float, re.findall(r"^headsync_streams\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)))


async def freed(host: str) -> int:
    """The streams that the server counts as open, when it has had time to notice that they are lost."""
    deadline, count = time.monotonic() + FREED_SECONDS, -1.0
    while count and time.monotonic() < deadline:
        with suppress(OSError):
            count = await asyncio.to_thread(open_streams, host)
        await asyncio.sleep(1)
    return int(count)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("scripts")
    parser.add_argument("--streams", type=int, default=20)
    given = parser.parse_args()
    scripts = list(np.load(given.scripts).values())
    now = time.monotonic()
    streams = [Stream(scripts[n % len(scripts)], now + n / given.streams) for n in range(given.streams)]
    finished = await asyncio.gather(*(stream.run(given.host) for stream in streams))
    for number, (stream, done) in enumerate(zip(streams, finished, strict=True)):
        print(json.dumps({"number": number, "finished": done, "connections": stream.connections}))
    print(await freed(given.host))


if __name__ == "__main__":
    asyncio.run(main())
