"""Security: routes without the token, paths of the server, memory and time."""

from __future__ import annotations

import asyncio
import hmac
import io
import stat
import struct
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import websockets
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse

from fuzz.wav import wav
from headsync.errors import AudioError
from headsync.frontend.audio import stream_audio
from headsync.server import openai_api
from headsync.server.app import build_app
from headsync.server.app_state import AppState
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from serving import run

TOKEN = "a-secret"
PUBLIC = {"/healthz", "/readyz", "/openapi.json", "/docs"}  # and the files of the page
LIMITS = Limits(stream_seconds=5.0, request_bytes=4 << 20)
WRONG = ({}, {"Authorization": "Bearer b-secret"}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN})


@pytest.fixture
def guarded(service: ModelService) -> Iterator[TestClient]:
    with TestClient(build_app(AppState([service], LIMITS, TOKEN))) as client:
        yield client


@pytest.fixture
def client(service: ModelService) -> Iterator[TestClient]:
    with TestClient(build_app(AppState([service], LIMITS))) as client:
        yield client


def transcribe(client: TestClient, name: str, content: bytes, **fields: str) -> httpx.Response:
    form = {"model": "digits-en", **fields}
    return client.post("/v1/audio/transcriptions", data=form, files={"file": (name, content)})


# --- the token ---


def _routes(client: TestClient, kind: type) -> Iterator[Any]:
    """Every route of the application, also of routers that it includes."""

    def walk(routes: list[Any]) -> Iterator[Any]:
        for route in routes:
            inner = getattr(route, "original_router", None) or getattr(route, "app", None)
            if isinstance(route, kind):
                yield route
            elif hasattr(inner, "routes"):
                yield from walk(inner.routes)

    yield from walk(client.app.routes)  # type: ignore[attr-defined]


def test_every_route_but_the_public_ones_needs_the_token(guarded: TestClient) -> None:
    asked = set()
    for route in _routes(guarded, Route):
        path = route.path.replace("{name}", "digits-en")
        for method in sorted(route.methods):
            asked.add(path)
            for header in WRONG:
                status = guarded.request(method, path, headers=header).status_code
                assert (status == 401) == (path not in PUBLIC), f"{method} {path}: {status}"
    assert asked >= {"/v1/models", "/v1/models/digits-en", "/v1/audio/transcriptions", "/metrics", "/healthz"}


def test_every_websocket_needs_the_token(guarded: TestClient) -> None:
    paths = {route.path for route in _routes(guarded, WebSocketRoute)}
    assert paths >= {"/v1/stream", "/v1/realtime", "/vosk", "/"}
    for path in sorted(paths | {"/unknown"}):
        for header in WRONG:
            with pytest.raises(WebSocketDenialResponse) as denied, guarded.websocket_connect(path, headers=header):
                pass
            assert denied.value.status_code == 401


def test_other_spellings_of_a_path_do_not_reach_a_route(guarded: TestClient) -> None:
    for path in ("//v1/models", "/V1/models", "/./v1/models", "/%76%31/models", "/v1%2Fmodels", "/x/../v1/models"):
        answer = guarded.get(path)
        assert answer.status_code in (401, 404), path
        assert "digits-en" not in answer.text


def test_tokens_are_compared_in_constant_time(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, real = [], hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr("headsync.server.middleware.hmac.compare_digest", compare)
    for offered in ("", "a", "a-secre", "b-secret", TOKEN):
        guarded.get("/v1/models", headers={"Authorization": f"Bearer {offered}"})
    assert [other for _, other in compared] == [TOKEN.encode()] * 5


# --- responses ---


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b"RIFF",
        wav(0),
        b"\x1a\x45\xdf\xa3",
        *(mark + bytes(99) for mark in (b"fLaC", b"OggS", b"ID3")),
    ],
)
def test_errors_name_the_file_of_the_client_and_no_path_of_the_server(client: TestClient, content: bytes) -> None:
    answer = transcribe(client, "mine.wav", content)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "mine.wav" in message
    assert not any(path in message for path in (tempfile.gettempdir(), str(Path.home()), "site-packages", ".py"))


# --- uploads ---


def test_uploads_are_private_and_do_not_stay(
    client: TestClient, recordings: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes = []

    def watched(path: Path, seconds: float) -> Iterator[Any]:
        assert path.parent == tmp_path
        modes.append(stat.S_IMODE(path.stat().st_mode))
        return stream_audio(path, seconds)

    monkeypatch.setattr(openai_api, "stream_audio", watched)
    path = recordings[0][0]
    assert transcribe(client, "../../../etc/passwd", path.read_bytes()).status_code == 200
    assert transcribe(client, "/etc/passwd", b"nonsense").status_code == 400
    assert modes == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == []


# --- bombs ---


def _flac(seconds: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000 * seconds, np.int16), 16_000, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def test_long_silence_in_a_small_file_is_decoded_up_to_the_limit(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def watched(path: Path, seconds: float) -> Iterator[Any]:
        for samples, rate in stream_audio(path, seconds):
            decoded.append(len(samples) / rate)
            yield samples, rate

    monkeypatch.setattr(openai_api, "stream_audio", watched)
    content = _flac(seconds=1200)
    assert len(content) < 200_000
    answer = transcribe(client, "silence.flac", content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too-long")
    assert sum(decoded) <= LIMITS.stream_seconds + openai_api.CHUNK_SECONDS


def _claims() -> dict[str, bytes]:
    """Small files whose headers claim hours."""
    flac = bytearray(_flac(seconds=1))
    flac[21] |= 0x0F  # the upper four of 36 bits of the number of samples
    flac[22:26] = b"\xff" * 4
    aiff = io.BytesIO()
    soundfile.write(aiff, np.zeros(100, np.int16), 16_000, format="AIFF", subtype="PCM_16")
    claim = b"data" + struct.pack("<I", 0x7000_0000)
    return {
        "flac": bytes(flac),
        "wav": wav(100).replace(b"data" + struct.pack("<I", 200), claim),
        "channels": wav(1, channels=1000).replace(b"data" + struct.pack("<I", 2000), claim),
        "aiff": aiff.getvalue().replace(b"\0\0\0d", b"\x7f\xff\xff\xff"),
    }


@pytest.mark.parametrize(("name", "content"), _claims().items(), ids=_claims())
def test_a_header_that_claims_hours_reserves_no_memory(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    tracemalloc.start()
    try:
        with suppress(AudioError):  # or the samples that are there
            list(stream_audio(tmp_path / name, 1.0))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_field_that_is_no_file_is_small(client: TestClient) -> None:
    answer = transcribe(client, "a.wav", wav(800), language="x" * (2 << 20))
    assert answer.status_code == 400
    answer = transcribe(client, "a.wav", wav(800), **{f"field{number}": "" for number in range(2000)})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_compressed_messages_are_not_negotiated(service: ModelService) -> None:
    """A message cannot be larger than what was sent of it."""

    async def extensions(server: Any) -> str | None:
        async with websockets.connect(server.ws("/v1/stream"), compression="deflate") as connection:
            assert connection.response is not None
            return connection.response.headers.get("Sec-WebSocket-Extensions")

    with run(service, Limits()) as server:
        assert asyncio.run(extensions(server)) is None
