"""Scale-out: nginx in front of two server processes that are restarted one after the other."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets

from headsync.server.model_service import ModelService
from serving import finals

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
EXAMPLE = Path(__file__).parents[2] / "deploy" / "nginx.conf"
STREAMS = 20
PATIENCE = 120.0  # seconds; machines that run tests are busy

pytestmark = pytest.mark.skipif(NGINX is None, reason="a balancer is tested with nginx, and none was found")

Recordings = list[tuple[Path, np.ndarray, int]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def balancer(folder: Path, ports: list[int]) -> Iterator[str]:
    """nginx with the example of `deploy`, at other ports; its address."""
    port = free_port()
    text = EXAMPLE.read_text(encoding="utf-8").replace("listen 8080", f"listen 127.0.0.1:{port}")
    for given, actual in zip((8081, 8082), ports, strict=True):
        assert f"127.0.0.1:{given}" in text
        text = text.replace(f"127.0.0.1:{given}", f"127.0.0.1:{actual}")
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}"
    (folder / "nginx.conf").write_text(f"{main} http {{ access_log off; {paths} {text} }}", encoding="utf-8")
    words = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with subprocess.Popen(words) as process:
        try:
            wait_until(lambda: can_connect(port))
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def can_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def server(port: int) -> Iterator[subprocess.Popen[str]]:
    """A server process that has loaded its model."""
    words = [sys.executable, "-m", "headsync", "serve", "--model", "digits-en", "--port", str(port)]
    words += ["--drain-seconds", "600"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert "Serving" in process.stdout.readline()
            yield process
        finally:
            process.kill()


async def talk(address: str, samples: np.ndarray, rate: int) -> str:
    """One live stream; the pieces are sent no faster than four times the speed of speech."""
    async with websockets.connect(address, open_timeout=PATIENCE) as connection:
        await connection.send(json.dumps({"type": "start", "sample_rate": rate}))
        for first in range(0, len(samples), rate // 5):
            await connection.send(samples[first : first + rate // 5].tobytes())
            await asyncio.sleep(0.05)
        await connection.send('{"type": "finish"}')
        messages = [json.loads(message) async for message in connection]
    assert messages[-1]["type"] == "done", messages[-1]
    return " ".join(finals(messages))


async def restart_under_load(
    place: str, processes: list[subprocess.Popen[str]], recordings: Recordings, opened: ExitStack, ports: list[int]
) -> list[list[str]]:
    """Consecutive streams, 20 at a time, while both processes are restarted; the texts by recording."""
    texts: list[list[str]] = [[] for _ in recordings]
    restarted = asyncio.Event()

    async def keep_talking(number: int) -> None:
        once_more = True
        while once_more:
            once_more = not restarted.is_set()
            _, samples, rate = recordings[number % len(recordings)]
            texts[number % len(recordings)].append(await talk(f"ws://{place}/v1/stream", samples, rate))

    async def restart() -> None:
        await asyncio.sleep(1.0)
        for process, port in zip(processes, ports, strict=True):
            open_streams = await streams_of(port)
            assert open_streams > 0
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0  # its streams have finished
            await asyncio.to_thread(opened.enter_context, server(port))
        restarted.set()

    await asyncio.gather(restart(), *(keep_talking(number) for number in range(STREAMS)))
    return texts


async def streams_of(port: int) -> float:
    async with httpx.AsyncClient() as client:
        lines = (await client.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("headsync_streams{"))


def test_a_rolling_restart_under_20_streams_loses_no_word(
    service: ModelService, recordings: Recordings, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    with ExitStack() as opened:
        processes = [opened.enter_context(server(port)) for port in ports]
        place = opened.enter_context(balancer(tmp_path, ports))
        texts = asyncio.run(restart_under_load(place, processes, recordings, opened, ports))
    assert sum(map(len, texts)) >= 2 * STREAMS
    for (_, samples, rate), found in zip(recordings, texts, strict=True):
        session = service.open_session()
        events = session.push(samples, rate) + session.finish()
        assert set(found) == {" ".join(finals([event.to_dict() for event in events]))}
