"""Limits of each client: open streams and new connections, by address and by token."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st

from headsync.server.app_state import AppState
from headsync.server.errors import StreamError
from headsync.server.limits import ConnectionRate, Limits, StreamLimiter, address_client
from headsync.server.model_service import ModelService
from headsync.server.wyoming_server import TcpConnection
from serving import FakeService, Running, run, stream

LISTEN = "/v1/listen?encoding=linear16&sample_rate=16000"
OWN, OTHER = "192.0.2.1", "192.0.2.2"


# sizes, clients and rates, without a server


def test_a_request_can_hold_a_wav_of_the_longest_stream() -> None:
    limits = Limits()
    assert limits.request_bytes > limits.stream_seconds * 16_000 * 2 + 10_000  # with the header and the form
    nginx = (Path(__file__).parents[2] / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    assert f"client_max_body_size {limits.request_bytes >> 20}m;" in nginx


@pytest.mark.parametrize(("host", "client"), [
    ("192.0.2.1", "192.0.2.1"),
    ("::ffff:192.0.2.1", "192.0.2.1"),
    ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
    ("testclient", "testclient"),
])  # fmt: skip
def test_the_client_of_an_address(host: str, client: str) -> None:
    assert address_client(host) == client


def test_the_threads_of_all_streams_start_with_the_server() -> None:
    before = set(threading.enumerate())
    state = AppState([FakeService()], Limits(streams=3))  # type: ignore[list-item]
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    state.close()
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


class Clock:
    """A clock that a test advances."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(1, 200))
def test_a_minutes_connections_at_once_then_one_after_another(per_minute: int) -> None:
    clock = Clock()
    rate = ConnectionRate(per_minute, clock)
    for _ in range(per_minute):
        rate.connect("a")
    with pytest.raises(StreamError) as error:
        rate.connect("a")
    assert error.value.code == "client-limit"
    assert error.value.retry_after == -(-60 // per_minute)
    rate.connect("b")
    clock.now += error.value.retry_after
    rate.connect("a")


@given(st.integers(1, 20), st.lists(st.floats(0, 30), max_size=60))
def test_never_more_than_twice_a_minutes_connections_in_a_minute(per_minute: int, pauses: list[float]) -> None:
    clock, accepted = Clock(), []
    rate = ConnectionRate(per_minute, clock)
    for pause in pauses:
        clock.now += pause
        with suppress(StreamError):
            rate.connect("a")
            accepted.append(clock.now)
    for start in accepted:
        assert sum(start <= at < start + 60 for at in accepted) <= 2 * per_minute


def test_clients_are_forgotten() -> None:
    clock = Clock()
    rate = ConnectionRate(5, clock)
    for number in range(1000):
        rate.connect(str(number))
    clock.now += 61
    rate.connect("new")
    assert len(rate._free_at) == 1
    limiter = StreamLimiter(Limits(client_streams=1))
    with limiter.count_client(["a", "token 0"]):
        assert limiter.rejection(["b", "token 0"]) is not None
        assert limiter.rejection(["b", "token 1"]) is None
    assert not limiter.client_streams


# with a server; it trusts the header of a proxy on the same machine


@contextmanager
def serving(service: ModelService, token: str | None = None, **limits: Any) -> Iterator[Running]:
    """A server whose minute does not pass."""
    with run(service, Limits(**limits), token) as server:
        server.state.connection_rate.clock = Clock()
        yield server


def connect(server: Running, path: str = "/v1/stream", address: str = OWN, token: str = "") -> websockets.connect:
    headers = {"X-Forwarded-For": address, **({"Authorization": f"Bearer {token}"} if token else {})}
    return websockets.connect(server.ws(path), additional_headers=headers)


async def refusal(connection: websockets.ClientConnection) -> dict[str, Any]:
    """The error of a connection that the server closes with "try again later"."""
    messages = []
    with suppress(websockets.ConnectionClosed):
        async with asyncio.timeout(60):
            while True:
                messages.append(json.loads(await connection.recv()))
    assert connection.close_code == 1013
    (message,) = messages or [json.loads(connection.close_reason or "")]  # Vosk has no error messages
    return dict(message.get("error", message))


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/realtime", LISTEN, "/vosk"])
@pytest.mark.parametrize(("limits", "code"), [({"streams": 1}, "busy"), ({"client_streams": 1}, "client-limit")])
def test_a_refused_websocket_has_a_retry_time(
    service: ModelService, path: str, limits: dict[str, int], code: str
) -> None:
    async def check(server: Running) -> None:
        async with connect(server) as first:
            await first.send('{"type": "start"}')
            await first.recv()
            async with connect(server, path) as second:
                error = await refusal(second)
            assert (error.get("code", error.get("variant")), error["retry_after"]) == (code, 5)
            await first.send('{"type": "finish"}')
            assert json.loads(await first.recv())["type"] == "done"

    with serving(service, **limits) as server:
        asyncio.run(check(server))
        assert server.state.metrics.rejected.labels(code)._value.get() == 1


def test_open_streams_of_an_address(service: ModelService) -> None:
    """Connections without a message count as well, and other addresses are not affected."""

    async def check(server: Running) -> None:
        async with AsyncExitStack() as opened:
            for _ in range(2):
                await opened.enter_async_context(connect(server))
            refused = await opened.enter_async_context(connect(server))
            assert (await refusal(refused))["message"] == (
                "The limit for a client is 2 open streams; finish one and try again."
            )
            other = await opened.enter_async_context(connect(server, address=OTHER))
            await other.send('{"type": "start"}')
            assert json.loads(await other.recv())["type"] == "ready"
            form = {"data": {"model": "digits-en"}, "files": {"file": b"RIFF"}, "headers": {"X-Forwarded-For": OWN}}
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"{server.http}/v1/audio/transcriptions", **form)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
            assert answer.json()["error"]["code"] == "client-limit"
        async with asyncio.timeout(60):
            while server.state.limiter.client_streams:
                await asyncio.sleep(0.01)
        assert (await stream(server.ws("/v1/stream"), np.zeros(0, "<i2")))[-1]["type"] == "done"

    with serving(service, client_streams=2) as server:
        asyncio.run(check(server))


def test_open_streams_of_a_token(service: ModelService) -> None:
    async def check(server: Running) -> None:
        async with connect(server, address=OWN, token="first"):
            async with connect(server, address=OTHER, token="first") as refused:
                assert (await refusal(refused))["code"] == "client-limit"
            async with connect(server, address=OTHER, token="second") as other:
                await other.send('{"type": "start"}')
                assert json.loads(await other.recv())["type"] == "ready"

    with serving(service, "first second", client_streams=1) as server:
        asyncio.run(check(server))


def test_a_single_token_has_no_separate_limit(service: ModelService) -> None:
    async def check(server: Running) -> None:
        async with (
            connect(server, address=OWN, token="only"),
            connect(server, address=OTHER, token="only") as other,
        ):
            await other.send('{"type": "start"}')
            assert json.loads(await other.recv())["type"] == "ready"

    with serving(service, "only", client_streams=1) as server:
        asyncio.run(check(server))


def models(server: Running, address: str, token: str) -> httpx.Response:
    headers = {"X-Forwarded-For": address, "Authorization": f"Bearer {token}"}
    return httpx.get(f"{server.http}/v1/models", headers=headers)


def test_new_connections_of_addresses_and_tokens(service: ModelService) -> None:
    """A wrong token counts for the address, so that tokens cannot be guessed quickly."""

    async def handshake(server: Running, address: str, token: str) -> websockets.InvalidStatus | None:
        try:
            async with connect(server, address=address, token=token):
                return None
        except websockets.InvalidStatus as denied:
            return denied

    with serving(service, "first second", client_connections=3) as server:
        assert [models(server, OWN, "guess").status_code for _ in range(3)] == [401, 401, 401]
        refused = models(server, OWN, "first")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "20")
        assert refused.json()["error"]["message"] == (
            "The limit for a client is 3 new connections per minute; try again in 20 s."
        )
        assert [models(server, f"198.51.100.{n}", "first").status_code for n in range(3)] == [200, 200, 200]
        denied = asyncio.run(handshake(server, OTHER, "first"))
        assert denied is not None
        assert (denied.response.status_code, denied.response.headers["retry-after"]) == (429, "20")
        assert asyncio.run(handshake(server, OTHER, "second")) is None
        assert httpx.get(f"{server.http}/healthz", headers={"X-Forwarded-For": OWN}).status_code == 200
        assert server.state.metrics.rejected.labels("client-limit")._value.get() == 2


def test_clients_of_the_wyoming_port(service: ModelService) -> None:
    async def refused(port: int) -> tuple[str, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = TcpConnection(reader, writer, 1 << 20)
        event = await asyncio.wait_for(client.receive(), 60)
        await client.close()
        assert event is not None
        return event.data["code"], event.data["retry_after"]

    async def check(port: int) -> tuple[str, int]:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'{"type": "ping"}\n')
        try:
            return await refused(port)
        finally:
            writer.close()

    with ExitStack() as opened:
        crowded = opened.enter_context(serving(service, client_streams=1))
        assert asyncio.run(check(crowded.wyoming)) == ("client-limit", 5)
        hurried = opened.enter_context(serving(service, client_connections=1))
        assert asyncio.run(check(hurried.wyoming)) == ("client-limit", 60)
