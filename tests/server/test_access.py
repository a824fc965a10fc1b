"""Aliases of models, allowed origins, and logs."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets
from typer.testing import CliRunner

from headsync.cli.app import app
from headsync.errors import ConfigError
from headsync.server.access_log import JsonFormatter, TextFormatter
from headsync.server.app_state import Access, AppState
from headsync.server.limits import Limits
from headsync.server.middleware import check_origin
from headsync.server.model_service import ModelService
from serving import Running, command, finals, run, stream

Recordings = list[tuple[Path, np.ndarray, int]]
ACCESS = Access(("https://app.example",), {"whisper-1": "digits-en"})


@pytest.fixture(scope="module")
def server(service: ModelService) -> Iterator[Running]:
    with run(service, Limits(), "secret", access=ACCESS) as running:
        yield running


def connect(server: Running, origin: str | None, token: str = "secret") -> int:
    """The status of a handshake."""

    async def handshake() -> int:
        try:
            async with websockets.connect(server.ws(f"/v1/stream?token={token}"), origin=origin):  # type: ignore[arg-type]
                return 101
        except websockets.InvalidStatus as denied:
            return denied.response.status_code

    return asyncio.run(handshake())


# aliases


def test_an_alias_is_another_name_of_a_model(server: Running, recordings: Recordings) -> None:
    path, samples, rate = recordings[0]
    headers = {"Authorization": "Bearer secret"}
    form = {"data": {"model": "whisper-1"}, "files": {"file": path.read_bytes()}, "headers": headers}
    text = httpx.post(f"{server.http}/v1/audio/transcriptions", **form).json()["text"]
    messages = asyncio.run(stream(server.ws("/v1/stream?token=secret"), samples, rate, model="whisper-1"))
    assert messages[0]["model"] == "digits-en"
    assert text == " ".join(finals(messages)) != ""
    assert httpx.get(f"{server.http}/v1/models/whisper-1", headers=headers).json()["id"] == "digits-en"


@pytest.mark.parametrize("aliases", [{"whisper-1": "english"}, {"digits-en": "digits-en"}])
def test_an_alias_must_be_new_and_name_a_served_model(service: ModelService, aliases: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="the alias must be new and the model one of digits-en"):
        AppState([service], Limits(), access=Access((), aliases))


def test_a_malformed_alias_or_origin_is_one_sentence() -> None:
    alias = CliRunner().invoke(app, ["serve", "--alias", "whisper-1"])
    assert (alias.exit_code, "write NAME=MODEL" in alias.output) == (1, True)
    for origin in ("app.example", "https://app.example/", "ftp://app.example", "https://"):
        with pytest.raises(ConfigError, match="is not an origin"):
            check_origin(origin)
    assert check_origin("https://App.example:8443") == "https://app.example:8443"


# origins


def test_websockets_are_accepted_from_the_same_and_from_allowed_origins(server: Running) -> None:
    assert connect(server, None) == 101
    assert connect(server, server.http) == 101
    assert connect(server, server.http.replace("http", "https")) == 101  # behind a TLS proxy
    assert connect(server, "https://app.example") == 101
    assert connect(server, "https://app.example", token="wrong") == 401


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:x", "file://"]
)
def test_websockets_of_other_origins_are_denied(server: Running, origin: str) -> None:
    assert connect(server, origin) == 403


def test_any_origin_can_be_allowed(service: ModelService) -> None:
    with run(service, Limits(), access=Access(("*",))) as server:
        assert connect(server, "https://evil.example") == 101


def test_cors_headers_are_sent_to_allowed_origins_alone(server: Running, service: ModelService) -> None:
    def preflight(server: Running, origin: str) -> httpx.Response:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        return httpx.options(f"{server.http}/v1/audio/transcriptions", headers={"Origin": origin, **asked})

    allowed = preflight(server, "https://app.example")
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert "access-control-allow-origin" not in preflight(server, "https://evil.example").headers
    headers = {"Origin": "https://app.example", "Authorization": "Bearer secret"}
    answer = httpx.get(f"{server.http}/v1/models", headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    with run(service, Limits()) as closed:
        assert "access-control-allow-origin" not in preflight(closed, "https://app.example").headers


# logs


def test_every_request_has_an_id_and_an_entry_without_the_token(
    server: Running, recordings: Recordings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headsync.access")
    _, samples, rate = recordings[0]
    asyncio.run(stream(server.ws("/v1/stream?token=secret"), samples, rate))
    answer = httpx.get(f"{server.http}/v1/models?token=secret")
    denied = connect(server, None, token="guess")
    end = time.monotonic() + 30
    while len(records := [record for record in caplog.records if record.name == "headsync.access"]) < 3:
        assert time.monotonic() < end, "an entry is missing"  # entries follow the answers
        time.sleep(0.01)
    live, models, wrong = (record.fields for record in records)  # type: ignore[attr-defined]
    assert (live["stream"], live["outcome"], live["status"], live["close_code"]) == ("stream", "done", 101, 1000)
    assert live["audio_seconds"] == pytest.approx(len(samples) / rate, abs=0.01)
    assert (models["method"], models["path"], models["status"]) == ("GET", "/v1/models", 200)
    assert models["id"] == answer.headers["x-request-id"] != live["id"]
    assert wrong["status"] == denied == 401
    for record in records:
        for formatter in (TextFormatter(), JsonFormatter()):
            line = formatter.format(record)
            assert "secret" not in line
            assert "guess" not in line
            assert "\n" not in line


def test_json_logs_of_the_command() -> None:
    with command("--log-level", "info", "--log-format", "json") as (process, place):
        request_id = httpx.get(f"http://{place}/healthz").headers["x-request-id"]
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    entries = [json.loads(line) for line in output.splitlines()]
    (entry,) = [entry for entry in entries if entry["logger"] == "headsync.access"]
    assert (entry["level"], entry["path"], entry["status"], entry["id"]) == ("info", "/healthz", 200, request_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])


def test_exceptions_are_one_json_line_with_the_traceback() -> None:
    try:
        raise RuntimeError("a fault")
    except RuntimeError as error:
        record = logging.LogRecord(
            "headsync.server", logging.ERROR, "", 0, "failed", None, (RuntimeError, error, error.__traceback__)
        )
    record.fields = {"id": "1"}
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["message"], entry["id"], "a fault" in entry["exception"]) == ("failed", "1", True)
    assert "RuntimeError: a fault" in TextFormatter().format(record)


def test_ids_differ_between_streams(server: Running) -> None:
    async def connect_twice() -> list[str]:
        ids = []
        for _ in range(2):
            async with websockets.connect(server.ws("/v1/stream?token=secret")) as connection:
                assert connection.response is not None
                ids.append(connection.response.headers["x-request-id"])
        return ids

    first, second = asyncio.run(connect_twice())
    assert first != second
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in (first, second))
