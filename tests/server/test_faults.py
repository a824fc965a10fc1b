"""Clients that are rejected, exceed limits, send invalid messages, idle or disconnect; others are not affected."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import websockets

from fakes import FakeSession
from headsync.events import Event, Partial
from headsync.server.limits import Limits
from serving import FakeService, Running, finals, run, stream

Start = Callable[..., Running]
Recordings = list[tuple[Path, np.ndarray, int]]
PATHS = ("/v1/stream", "/vosk", "/")


def closed(error: pytest.ExceptionInfo[websockets.ConnectionClosed]) -> int:
    assert error.value.rcvd is not None
    return error.value.rcvd.code


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def ended(server: Running, how: str, protocol: str = "stream") -> float:
    return server.state.metrics.ended_streams.labels(protocol, how)._value.get()


# the door


def test_without_the_token_nothing_is_open_but_health(start: Start, recordings: Recordings) -> None:
    server = start(token="secret")
    with recordings[0][0].open("rb") as file, httpx.Client(base_url=server.http) as client:
        form = {"data": {"model": "digits-en"}, "files": {"file": file}}
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            assert client.get("/v1/models", headers=header).status_code == 401
            assert client.get("/metrics", headers=header).status_code == 401
            answer = client.post("/v1/audio/transcriptions", headers=header, **form)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        right = {"Authorization": "Bearer secret"}
        assert client.get("/v1/models", headers=right).status_code == 200
        assert client.get("/metrics?token=secret").status_code == 200
        assert client.get("/metrics?token=secret", headers={"Authorization": "Bearer wrong"}).status_code == 401

    async def knock(path: str, **header: str) -> int:
        try:
            async with websockets.connect(server.ws(path), additional_headers=header):
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    for path in PATHS:
        assert asyncio.run(knock(path)) == 401
        assert asyncio.run(knock(f"{path}?token=secre")) == 401
        assert asyncio.run(knock(f"{path}?token=secret")) == 101
        assert asyncio.run(knock(path, Authorization="Bearer secret")) == 101
        assert asyncio.run(knock(path, Authorization="bearer wrong")) == 401


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Messages that the server logs as errors. Call `watch()` after the start, which configures uvicorn's loggers."""
    logger = logging.getLogger("uvicorn")

    def watch() -> list[str]:
        if caplog.handler not in logger.handlers:
            logger.addHandler(caplog.handler)
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]

    yield watch
    logger.removeHandler(caplog.handler)


def test_a_wrong_token_on_a_websocket_is_denied_without_an_error_log(
    start: Start, errors: Callable[[], list[str]]
) -> None:
    server = start(token="secret")
    assert errors() == []

    async def connect(path: str) -> websockets.Response:
        with pytest.raises(websockets.InvalidStatus) as denied:
            async with websockets.connect(server.ws(f"{path}?token=wrong")):
                pass
        return denied.value.response

    for path in PATHS:
        response = asyncio.run(connect(path))
        assert response.status_code == 401
        assert json.loads(response.body or b"")["error"]["code"] == "invalid_api_key"
    asyncio.run(eventually(lambda: not server.server.server_state.connections))
    assert errors() == []


@pytest.mark.parametrize(("path", "message"), [
    ("/v1/stream", '{"type": "start", "model": "\\ud800"}'), ("/vosk", '{"config": {"model": "\\ud800"}}'),
])  # fmt: skip
def test_a_lone_surrogate_closes_the_connection_properly(
    running: Running, errors: Callable[[], list[str]], path: str, message: str
) -> None:
    assert errors() == []

    async def talk() -> list[str]:
        answers: list[str] = []
        async with websockets.connect(running.ws(path)) as connection:
            await connection.send(message)
            with suppress(websockets.ConnectionClosed):
                while True:
                    answers.append(str(await connection.recv()))
            assert connection.close_code == 1008
        return answers

    answers = [json.loads(answer)["code"] for answer in asyncio.run(talk())]
    assert answers == (["message"] if path == "/v1/stream" else [])
    assert errors() == []


def test_one_stream_too_many(start: Start) -> None:
    server = start(streams=1)

    async def crowd() -> None:
        async with websockets.connect(server.ws("/v1/stream")) as first:
            await first.send('{"type": "start"}')
            await first.recv()
            (refused,) = await stream(server.ws("/v1/stream"), np.zeros(0, "<i2"))
            assert (refused["type"], refused["code"]) == ("error", "busy")
            assert refused["message"] == "The only stream of this server is in use; try again later."
            async with websockets.connect(server.ws("/vosk")) as third:
                with pytest.raises(websockets.ConnectionClosed) as error:
                    await third.recv()
                assert closed(error) == 1013
            async with httpx.AsyncClient(base_url=server.http) as client:
                assert (await client.get("/readyz")).json() == {"status": "busy"}
                form = {"data": {"model": "digits-en"}, "files": {"file": b"RIFF"}}
                answer = await client.post("/v1/audio/transcriptions", **form)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
                assert server.state.metrics.rejected.labels("busy")._value.get() == 3
            await first.send('{"type": "finish"}')
            assert json.loads(await first.recv())["type"] == "done"
        await eventually(lambda: server.state.limiter.open_streams == 0)
        assert (await stream(server.ws("/v1/stream"), np.zeros(0, "<i2")))[-1]["type"] == "done"

    asyncio.run(crowd())


def test_a_request_that_is_too_large(start: Start) -> None:
    server = start(request_bytes=10_000)
    with httpx.Client(base_url=server.http) as client:
        answer = client.post("/v1/audio/transcriptions", data={"model": "x"}, files={"file": bytes(20_000)})
        assert (answer.status_code, "10000 bytes" in answer.json()["error"]["message"]) == (413, True)

    async def without_a_length() -> int:
        async def body() -> Any:
            yield b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(20):
                yield bytes(1000)

        async with httpx.AsyncClient(base_url=server.http) as client:
            kind = {"content-type": "multipart/form-data; boundary=cut"}
            return (await client.post("/v1/audio/transcriptions", content=body(), headers=kind)).status_code

    assert asyncio.run(without_a_length()) == 413


def test_a_recording_and_a_stream_that_are_too_long(start: Start, recordings: Recordings) -> None:
    server = start(stream_seconds=1.0)
    path, samples, rate = recordings[0]
    messages = asyncio.run(stream(server.ws("/v1/stream"), samples, rate))
    assert (messages[-1]["type"], messages[-1]["code"]) == ("error", "too-long")
    with httpx.Client(base_url=server.http) as client:
        answer = client.post("/v1/audio/transcriptions", data={"model": "digits-en"}, files={"file": path.read_bytes()})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too-long")
        form = {"data": {"model": "digits-en", "stream": "true"}, "files": {"file": path.read_bytes()}}
        answer = client.post("/v1/audio/transcriptions", **form)
        assert '"code": "too-long"' in answer.text


# nonsense, and others beside it


NONSENSE = {
    "text where sound belongs": ["hello"],
    "a message that is too large": [bytes(3 << 20)],
    "samples that are no numbers": [np.full(8000, np.nan, "<f4").tobytes()],
    "samples beyond all measure": [np.full(16_000, 3e38, "<f4").tobytes()] * 3,
    "random bytes": [np.random.default_rng(1).bytes(64_001)],
    "gone in the middle": [None],
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_invalid_messages_affect_no_other_stream(running: Running, recordings: Recordings, nonsense: list[Any]) -> None:
    _, samples, rate = recordings[0]

    async def foe() -> None:
        async with websockets.connect(running.ws("/v1/stream")) as connection:
            await connection.send('{"type": "start", "format": "float32"}')
            await connection.recv()
            try:
                for message in nonsense:
                    if message is None:
                        await connection.send(bytes(6400))
                        connection.transport.abort()
                        return
                    await connection.send(message)
                await connection.send('{"type": "finish"}')
                async for _ in connection:
                    pass
            except websockets.ConnectionClosed:
                pass

    async def both() -> list[dict[str, Any]]:
        friend = asyncio.create_task(stream(running.ws("/v1/stream"), samples, rate, 3200))
        await asyncio.gather(foe(), foe())
        return await friend

    said = finals(asyncio.run(both()))
    session = running.state.open_session()
    assert said == [e.text for e in session.push(samples, rate) + session.finish() if type(e).__name__ == "Final"]
    asyncio.run(eventually(lambda: running.state.limiter.open_streams == 0))


@pytest.mark.parametrize(("message", "code"), [
    ("hello", 1008), (bytes(2 << 20), 1009), (np.full(800, np.nan, "<f4").tobytes(), 1008),
])  # fmt: skip
def test_replies_to_invalid_messages(running: Running, message: Any, code: int) -> None:
    answers: list[Any] = []

    async def say(connection: Any) -> None:
        await connection.send(message)  # what is too large may be refused before all of it is sent
        while True:
            answers.append(await connection.recv())

    async def talk() -> None:
        async with websockets.connect(running.ws("/v1/stream")) as connection:
            await connection.send('{"type": "start", "format": "float32"}')
            await connection.recv()
            with pytest.raises(websockets.ConnectionClosed) as error:
                await say(connection)
            assert closed(error) == code
        assert [json.loads(answer)["type"] for answer in answers] == (["error"] if code != 1009 else [])

    asyncio.run(talk())


def test_garbage_instead_of_frames(running: Running) -> None:
    with raw(running) as connection:
        connection.sendall(b"\xff" * 500)
        while connection.recv(1000):
            pass
    asyncio.run(eventually(lambda: running.state.limiter.open_streams == 0))


def test_a_websocket_to_an_unknown_path(running: Running) -> None:
    async def knock() -> None:
        with pytest.raises(websockets.InvalidStatus):
            async with websockets.connect(running.ws("/nowhere")):
                pass

    asyncio.run(knock())


# silence


def test_idle_connections_are_closed(start: Start) -> None:
    server = start(idle_seconds=0.3)

    async def wait(path: str, *messages: str | bytes) -> tuple[list[str], int]:
        answers: list[str] = []
        async with websockets.connect(server.ws(path)) as connection:
            for message in messages:
                await connection.send(message)
            with suppress(websockets.ConnectionClosed):
                while True:
                    answers.append(await connection.recv())
            assert connection.close_code is not None
            return answers, connection.close_code

    answers, code = asyncio.run(wait("/v1/stream"))
    assert (json.loads(answers[0])["code"], code) == ("idle", 1008)
    answers, code = asyncio.run(wait("/v1/stream", '{"type": "start"}', bytes(3200)))
    assert ([json.loads(answer)["type"] for answer in answers], code) == (["ready", "error"], 1008)
    assert asyncio.run(wait("/vosk"))[1] == 1008
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        assert connection.recv(1) == b""  # closed without a word on either side
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: here\r\nContent-Length: 99\r\n")
        connection.sendall(b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n--cut")
        assert b" 408 " in read_response(connection)


def test_slow_request_heads_time_out(start: Start) -> None:
    server = start(idle_seconds=1.0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n")
        began = time.monotonic()
        with suppress(ConnectionError):
            while connection not in select.select([connection], [], [], 0.1)[0]:
                connection.sendall(b"X: y\r\n")
            assert connection.recv(1000) == b""
        assert time.monotonic() - began < 30


def test_a_slow_request_body_times_out(start: Start) -> None:
    server = start(idle_seconds=1.0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: here\r\nContent-Length: 99999\r\n")
        connection.sendall(b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n--cut\r\n")
        while connection not in select.select([connection], [], [], 0.1)[0]:
            connection.sendall(b"x")
        answer = read_response(connection)
    assert b" 408 " in answer
    assert b"arrived too slowly; send at least 1000 bytes per second and no pause of 1 s" in answer


def test_half_a_connection(start: Start) -> None:
    """A client that stops sending but keeps receiving, and one that never answers a close."""
    server = start(idle_seconds=1.0)
    with raw(server) as half, raw(server) as rude:
        half.sendall(frame(0x1, b'{"type": "start"}'))
        rude.sendall(frame(0x1, b'{"type": "start"}'))
        assert b"ready" in read_until(half, b"ready")
        half.shutdown(socket.SHUT_WR)
        while half.recv(1000):
            pass
        asyncio.run(eventually(lambda: ended(server, "disconnected") == 1))
        asyncio.run(eventually(lambda: server.state.limiter.open_streams == 0))
        asyncio.run(eventually(lambda: not server.server.server_state.connections))  # it is closed all the same


def test_five_hundred_idle_connections(start: Start, recordings: Recordings) -> None:
    """They occupy no slot and are closed; half of them open a WebSocket first."""
    _, samples, rate = recordings[0]
    server = start(streams=2, idle_seconds=8.0)
    with ExitStack() as crowd:
        for n in range(500):
            connection = crowd.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            if n % 2:
                connection.sendall(HANDSHAKE)
        asyncio.run(eventually(lambda: len(server.server.server_state.connections) == 500))
        messages = asyncio.run(stream(server.ws("/v1/stream"), samples, rate))
        assert messages[-1]["type"] == "done"
        assert finals(messages)
        asyncio.run(eventually(lambda: not server.server.server_state.connections))


# a message of a gigabyte


HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def raw(server: Running) -> socket.socket:
    """An open WebSocket without a library, so that it can misbehave."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(HANDSHAKE)
    assert b" 101 " in read_until(connection, b"\r\n\r\n")
    return connection


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    """What the server sends up to `wanted`, or up to the end of the connection; one `recv` may return any part."""
    received = b""
    while wanted not in received and (part := connection.recv(4096)):
        received += part
    return received


def read_response(connection: socket.socket) -> bytes:
    """A response with its body."""
    head, _, body = read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
    length = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: "))
    while len(body) < length and (part := connection.recv(4096)):
        body += part
    return head + b"\r\n\r\n" + body


def frame(head: int, data: bytes = b"", final: bool = True, length: int | None = None) -> bytes:
    """A frame of a client, masked with zeros; `length` is what it claims to hold."""
    size = (len(data) if length is None else length).to_bytes(8, "big")
    return bytes([head | (0x80 if final else 0), 0xFF]) + size + bytes(4) + data


def test_a_message_of_a_gigabyte(running: Running) -> None:
    """At once, in pieces, and as a request: each is refused when it is announced, or when it has grown too large."""
    refused = (1009).to_bytes(2, "big")
    before = resident_bytes()
    with raw(running) as connection:
        connection.sendall(frame(0x2, length=1 << 30))
        assert refused in read_until(connection, refused)
    with raw(running) as connection:
        connection.sendall(frame(0x2, bytes(1 << 19), final=False))
        with suppress(ConnectionError):
            for _ in range(2047):
                connection.sendall(frame(0x0, bytes(1 << 19), final=False))
        with suppress(ConnectionError):  # its reply may be lost behind data that was still being sent
            assert refused in read_until(connection, refused)
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: here\r\nContent-Length: 1073741824\r\n\r\n"
        )
        assert b" 413 " in read_response(connection)
    asyncio.run(eventually(lambda: running.state.limiter.open_streams == 0))
    assert resident_bytes() - before < 100 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


@pytest.mark.slow
def test_ten_minutes_of_audio_at_full_speed(start: Start, recordings: Recordings) -> None:
    """Beside it another stream gets its text, and the memory is there again afterwards."""
    server = start()
    _, samples, rate = recordings[0]
    pause = np.zeros(2 * rate, "<i2")
    once = np.concatenate([samples, pause])
    long = np.tile(once, 600 * rate // len(once) + 1)

    async def both() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        fast = asyncio.create_task(stream(server.ws("/v1/stream"), long, rate, 1 << 18))
        await asyncio.sleep(2)
        friend = await stream(server.ws("/v1/stream"), samples, rate)
        return await fast, friend

    asyncio.run(stream(server.ws("/v1/stream"), long[: 60 * rate], rate, 1 << 18))  # what a stream takes at all
    before = resident_bytes()
    fast, friend = asyncio.run(both())
    assert fast[-1]["audio_seconds"] >= 600
    assert finals(friend) == finals(fast)[:1]
    assert len(finals(fast)) >= 100
    assert resident_bytes() - before < 50 << 20


# too fast, and too slow


class Told(FakeService):
    """A fake model whose sessions wait for an event, and return scripted events."""

    name = "told"

    def __init__(self, events: list[Event], may: threading.Event, free: int = 0) -> None:
        self.events, self.may, self.free = events, may, free  # pieces that need not wait

    def open_session(self, *_: Any) -> FakeSession:
        told = self

        class Session(FakeSession):
            def push(self, samples: Any, sample_rate: int) -> list[Event]:
                if not len(samples):
                    return []
                told.free -= 1
                assert told.free >= 0 or told.may.wait(60)
                return told.events

        return Session("")


@pytest.fixture
def may() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_stream_that_is_too_fast_is_slowed_down(may: threading.Event) -> None:
    async def pour(server: Running) -> int:
        sent = 0
        async with websockets.connect(server.ws("/v1/stream")) as connection:
            await connection.send('{"type": "start"}')
            may.clear()
            try:
                while sent < 100 << 20:
                    async with asyncio.timeout(1.0):
                        await connection.send(bytes(1 << 19))
                    sent += 1 << 19
            except TimeoutError:
                may.set()
            connection.transport.abort()
        return sent

    may.set()
    with run(Told([], may), Limits()) as server:  # type: ignore[arg-type]
        assert asyncio.run(pour(server)) < 64 << 20  # what sockets hold, and no more
        asyncio.run(eventually(lambda: server.state.limiter.open_streams == 0))


def test_a_client_that_does_not_read_is_disconnected(may: threading.Event) -> None:
    may.set()
    loud: list[Event] = [Partial(0, "word " * 50_000, (), 0.0, 0.0)] * 8

    async def ignore(server: Running) -> None:
        async with websockets.connect(server.ws("/v1/stream"), max_queue=1) as connection:
            await connection.send('{"type": "start"}')
            for _ in range(20):
                await connection.send(bytes(320))
            await eventually(lambda: ended(server, "slow") == 1)
            connection.transport.abort()

    with run(Told(loud, may), Limits(idle_seconds=2.0)) as server:  # type: ignore[arg-type]
        asyncio.run(ignore(server))
        asyncio.run(eventually(lambda: server.state.limiter.open_streams == 0))
        asyncio.run(eventually(lambda: not server.server.server_state.connections))


def test_a_client_that_disconnects_during_a_reply(may: threading.Event, recordings: Recordings) -> None:
    form = {"data": {"model": "told", "stream": "true"}, "files": {"file": recordings[0][0].read_bytes()}}
    with run(Told([], may, free=1), Limits()) as server:  # type: ignore[arg-type]
        with (
            httpx.Client(base_url=server.http) as client,
            client.stream("POST", "/v1/audio/transcriptions", **form) as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert server.state.limiter.open_streams == 1
        asyncio.run(eventually(lambda: server.state.limiter.open_streams == 0))
        assert not may.is_set()
        assert ended(server, "disconnected", "recording") == 1
        may.set()


class Broken(FakeService):
    """A fake model that raises an error."""

    name = "broken"

    def open_session(self, *_: Any) -> FakeSession:
        raise RuntimeError("a fault of ours")


class FailsLater(FakeService):
    """A fake model that raises an error in the second chunk of audio."""

    name = "fails-later"

    def __init__(self, may: threading.Event) -> None:
        self.may, self.chunks = may, 0

    def open_session(self, *_: Any) -> FakeSession:
        service = self

        class Session(FakeSession):
            def push(self, samples: Any, sample_rate: int) -> list[Event]:
                service.chunks += bool(len(samples))
                if service.chunks > 1:
                    assert service.may.wait(60)
                    raise RuntimeError("a fault of the server")
                return []

        return Session("")


def test_a_fault_of_the_server_has_the_form_of_the_api(recordings: Recordings) -> None:
    sound = recordings[0][0].read_bytes()
    with run(Broken(), Limits()) as server:  # type: ignore[arg-type]
        form = {"data": {"model": "broken"}, "files": {"file": sound}}
        answer = httpx.post(f"{server.http}/v1/audio/transcriptions", **form)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert answer.json()["error"]["code"] == "internal"


def test_a_fault_of_the_server_in_the_middle_of_an_event_stream(
    may: threading.Event, recordings: Recordings, caplog: pytest.LogCaptureFixture
) -> None:
    with run(FailsLater(may), Limits()) as server:  # type: ignore[arg-type]
        form = {"data": {"model": "fails-later", "stream": "true"}, "files": {"file": recordings[0][0].read_bytes()}}
        with httpx.stream("POST", f"{server.http}/v1/audio/transcriptions", **form) as answer:
            assert answer.status_code == 200
            may.set()
            *_, last = [line for line in answer.iter_lines() if line]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal"
    assert "a transcription failed" in caplog.text


def test_every_recording_is_counted_once_as_what_it_was(start: Start, recordings: Recordings) -> None:
    def counted(server: Running) -> dict[str, float]:
        hows = ("done", "error", "disconnected")
        return {how: count for how in hows if (count := ended(server, how, "recording"))}

    def send(server: Running, model: str, sound: bytes, **fields: str) -> int:
        form = {"data": {"model": model, **fields}, "files": {"file": sound}}
        return httpx.post(f"{server.http}/v1/audio/transcriptions", **form).status_code

    server, sound = start(), recordings[0][0].read_bytes()
    assert send(server, "digits-en", b"not sound at all") == 400
    assert send(server, "digits-en", b"not sound at all", stream="true") == 400
    assert send(server, "whisper-1", sound) == 404
    assert counted(server) == {"error": 3}
    assert send(server, "digits-en", sound) == 200
    assert counted(server) == {"error": 3, "done": 1}
    with run(Broken(), Limits()) as server:  # type: ignore[arg-type]
        assert send(server, "broken", sound) == 500
        assert counted(server) == {"error": 1}


def test_a_server_error_is_reported_as_internal(may: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    with run(Told([None], may), Limits()) as server:  # type: ignore[arg-type, list-item]
        may.set()
        messages = asyncio.run(stream(server.ws("/v1/stream"), np.zeros(160, "<i2")))
    assert (messages[-1]["type"], messages[-1]["code"]) == ("error", "internal")
    assert "a stream failed" in caplog.text
