"""The command in a separate process: it prints its address, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets
from typer.testing import CliRunner

from headsync.cli.app import app
from headsync.server.model_service import ModelService
from serving import command, finals, stream

Recordings = list[tuple[Path, np.ndarray, int]]


def expected(service: ModelService, samples: np.ndarray, rate: int) -> str:
    session = service.open_session()
    events = session.push(samples, rate) + session.finish()
    return " ".join(event.text for event in events if type(event).__name__ == "Final")


async def leave_in_the_middle(process: subprocess.Popen[str], place: str, samples: np.ndarray, rate: int) -> str:
    """A stream during which the server is stopped: it accepts no other, but this one gets its text."""
    async with websockets.connect(f"ws://{place}/v1/stream") as connection:
        process.send_signal(signal.SIGTERM)
        await connection.send(json.dumps({"type": "start", "sample_rate": rate}))  # accepted before, so it is served
        await connection.recv()
        first, second = np.array_split(samples, 2)
        await connection.send(first.tobytes())
        async with httpx.AsyncClient(base_url=f"http://{place}") as client, asyncio.timeout(60):
            while (answer := await client.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
            assert answer.json() == {"status": "draining"}
            assert (await client.get("/healthz")).status_code == 200
        with pytest.raises(websockets.InvalidStatus) as refused:
            await stream(f"ws://{place}/v1/stream", samples, rate)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "5"
        await connection.send(second.tobytes())
        await connection.send('{"type": "finish"}')
        messages = [json.loads(message) async for message in connection]
        assert messages[-1]["type"] == "done"
        return " ".join(finals(messages))


def test_a_stop_signal_drains_open_streams(service: ModelService, recordings: Recordings) -> None:
    _, samples, rate = recordings[0]
    with command("--drain-seconds", "600", "--idle-seconds", "600") as (process, place):  # the machine may be busy
        text = asyncio.run(leave_in_the_middle(process, place, samples, rate))
        assert text == expected(service, samples, rate)
        assert process.wait(60) == 0


def test_without_streams_the_server_stops_at_once_and_the_drain_is_limited(recordings: Recordings) -> None:
    async def stay(process: subprocess.Popen[str], place: str) -> int | None:
        async with websockets.connect(f"ws://{place}/v1/stream") as connection:
            await connection.send('{"type": "start"}')
            await connection.recv()
            process.send_signal(signal.SIGTERM)
            with pytest.raises(websockets.ConnectionClosed):
                await asyncio.wait_for(connection.recv(), 60)
            return connection.close_code

    with command("--drain-seconds", "0.2") as (process, place):
        assert asyncio.run(stay(process, place)) == 1012
        assert process.wait(60) == 0


async def kill_one_of_them(process: subprocess.Popen[str], address: str, samples: np.ndarray, rate: int) -> list[str]:
    """Six streams, and in the middle of them the death of a process; their texts, or "lost"."""

    async def talk() -> str:
        async with websockets.connect(address) as connection:
            await connection.send(json.dumps({"type": "start", "sample_rate": rate}))
            await connection.recv()
            first, second = np.array_split(samples, 2)
            await connection.send(first.tobytes())
            ready.append(1)
            await killed.wait()
            await connection.send(second.tobytes())
            await connection.send('{"type": "finish"}')
            messages = [json.loads(message) async for message in connection]
            return " ".join(finals(messages)) if messages[-1]["type"] == "done" else "lost"

    ready: list[int] = []
    killed = asyncio.Event()
    streams = [asyncio.create_task(talk()) for _ in range(6)]
    async with asyncio.timeout(60):
        while len(ready) < len(streams):
            await asyncio.sleep(0.05)
    os.kill(min(workers_of(process.pid), key=sockets_of), signal.SIGKILL)  # so that not all streams are its own
    killed.set()
    outcomes = await asyncio.gather(*streams, return_exceptions=True)
    return ["lost" if isinstance(outcome, websockets.ConnectionClosed) else str(outcome) for outcome in outcomes]


def workers_of(pid: int) -> list[int]:
    """The processes that serve: children of the first one, as Linux lists them."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def sockets_of(pid: int) -> int:
    """How many connections a process holds."""
    return sum(os.readlink(file).startswith("socket:") for file in Path(f"/proc/{pid}/fd").iterdir())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def two_processes(port: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """`headsync serve --workers 2`, and its processes while they are still loading."""
    words = [sys.executable, "-m", "headsync", "serve", "--model", "digits-en", "--port", str(port), "--workers", "2"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            while len(workers := workers_of(process.pid)) < 2:
                assert process.poll() is None
                time.sleep(0.01)
            yield process, workers
        finally:
            process.kill()


def answers(address: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(address, timeout=1.0).status_code == 200
    return False


def test_the_address_is_printed_when_all_processes_are_ready() -> None:
    port = free_port()
    with two_processes(port) as (process, (late, _)):
        assert process.stdout is not None
        os.kill(late, signal.SIGSTOP)
        try:
            deadline = time.monotonic() + 60
            while not answers(f"http://127.0.0.1:{port}/healthz"):
                assert time.monotonic() < deadline
            assert not select.select([process.stdout], [], [], 1.0)[0]  # the other one serves, and nothing is said
        finally:
            os.kill(late, signal.SIGCONT)
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_process_that_dies_before_it_is_ready_ends_the_others() -> None:
    with two_processes(free_port()) as (process, (first, _)):
        os.kill(first, signal.SIGKILL)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == "a worker process died (exit code -9) while loading; if memory is short, use fewer --workers\n"


def test_ctrl_c_while_the_processes_load_prints_nothing() -> None:
    """Ctrl-C reaches every process of the group; the workers leave it to the supervisor."""
    words = [sys.executable, "-m", "headsync", "serve", "--model", "digits-en", "--port", "0", "--workers", "2"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        while len(workers_of(process.pid)) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "")


def test_several_processes(service: ModelService, recordings: Recordings) -> None:
    _, samples, rate = recordings[0]
    with command("--workers", "2", "--token", "secret") as (process, place):
        address = f"ws://{place}/v1/stream?token=secret"
        assert " ".join(finals(asyncio.run(stream(address, samples, rate)))) == expected(service, samples, rate)
        figures = httpx.get(f"http://{place}/metrics?token=secret").text
        assert 'headsync_ended_streams_total{outcome="done",protocol="stream"} 1.0' in figures
        text = expected(service, samples, rate)
        outcomes = asyncio.run(kill_one_of_them(process, address, samples, rate))
        assert set(outcomes) <= {text, "lost"}
        assert text in outcomes  # streams of the other process are not affected
        for _ in range(4):  # and others find an open door
            assert " ".join(finals(asyncio.run(stream(address, samples, rate)))) == text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_startup_errors_are_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(app, ["serve", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 1
    assert "cannot listen (Address already in use)" in " ".join(result.output.split())
    assert CliRunner().invoke(app, ["serve", "--port", "0", "--model", "nonesuch"]).exit_code == 1


def test_a_model_that_cannot_be_loaded_stops_all_processes(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "headsync", "serve", "--port", "0", "--workers", "2", "--model", str(tmp_path)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()  # said once, not by each
    assert "not a complete model folder" in line


def test_a_public_address_without_a_token_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from headsync.server import serve

    served = []
    monkeypatch.setattr(serve, "serve", lambda options, _: served.append(options))
    monkeypatch.setenv("HEADSYNC_TOKEN", "")
    open_to_all = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0"])
    assert "restrict access" in " ".join(open_to_all.output.split())
    monkeypatch.setenv("HEADSYNC_TOKEN", "secret")
    assert not CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--streams", "3"]).output
    assert [options.token for options in served] == [None, "secret"]
    assert served[1].limits.streams == 3
