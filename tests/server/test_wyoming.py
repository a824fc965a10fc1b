"""The Wyoming protocol: without a server, and with the client of the package `wyoming`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fakes import FakeSession
from headsync.cli.app import app
from headsync.events import Event, Final, Partial, Word
from headsync.server import mdns
from headsync.server.app_state import Access, AppState
from headsync.server.base_stream import SessionOptions
from headsync.server.errors import StreamError
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from headsync.server.wyoming import WyomingEvent, WyomingStream, build_info, encode_event, parse_header
from headsync.server.wyoming_server import TcpConnection
from isolated_client import IsolatedClient
from serving import run, started

Recordings = list[tuple[Path, np.ndarray, int]]
RATE = 16_000
FORMAT = {"rate": RATE, "width": 2, "channels": 1}


# the protocol without a server


class Scripted(FakeSession):
    """Returns given events, push by push, and at the end."""

    def __init__(self, *script: list[Event]) -> None:
        super().__init__("")
        self.script = list(script)

    def push(self, samples: Any, sample_rate: int) -> list[Event]:
        super().push(samples, sample_rate)
        return self.script.pop(0) if len(samples) else []

    def finish(self) -> list[Event]:
        return self.script.pop(0)


def words(text: str) -> tuple[Word, ...]:
    return tuple(Word(word, i / 2, i / 2 + 0.4) for i, word in enumerate(text.split()))


def partial(utterance: int, text: str, committed: int) -> Partial:
    return Partial(utterance, text, words(text), 0.1, 1.0, committed)


def final(utterance: int, text: str) -> Final:
    return Final(utterance, text, words(text), 0.1, 2.0, (), 0.5)


SCRIPT: list[list[Event]] = [
    [partial(0, "one too", 1)],
    [final(0, "one two"), partial(1, "three", 0)],
    [final(1, "three four")],
]


def stream(*scripts: list[list[Event]], limits: Limits = Limits(), **writable: bool) -> WyomingStream:  # noqa: B008
    rest, opened = list(scripts), []

    def open_session(options: SessionOptions) -> Scripted:
        opened.append(options)
        return Scripted(*rest.pop(0))

    made = WyomingStream(build_info([]), open_session, lambda model, phrase: phrase in writable, limits)
    made.opened = opened  # type: ignore[attr-defined]
    return made


def send(made: WyomingStream, kind: str, payload: bytes = b"", **data: Any) -> list[dict[str, Any]]:
    return list(made.receive(WyomingEvent(kind, data, payload)).messages)


def texts(messages: list[dict[str, Any]], kind: str) -> list[str]:
    return [message["data"]["text"] for message in messages if message["type"] == kind]


def test_chunks_are_committed_text_and_make_the_transcript() -> None:
    made = stream(SCRIPT)
    assert send(made, "transcribe", language="en") == []
    messages = send(made, "audio-start", **FORMAT)
    for _ in range(2):
        messages += send(made, "audio-chunk", bytes(3200), **FORMAT)
    messages += send(made, "audio-stop")
    kinds = [message["type"] for message in messages]
    assert kinds == ["transcript-start", *["transcript-chunk"] * 3, "transcript", "transcript-stop"]
    assert texts(messages, "transcript-chunk") == ["one", " two", " three four"]
    assert texts(messages, "transcript") == ["one two three four"]
    assert made.usage.audio_seconds == 0.2


def test_a_connection_serves_several_transcripts_and_options_are_of_one() -> None:
    made = stream([[final(0, "one")]], [[final(0, "two")]], nine=True)
    send(made, "transcribe", name="other", transcript_names=["nine", "lamp"], transcript_terms=["sofa", 3])
    send(made, "audio-start", **FORMAT)
    assert texts(send(made, "audio-stop"), "transcript") == ["one"]
    send(made, "audio-start", **FORMAT)
    assert texts(send(made, "audio-stop"), "transcript") == ["two"]
    assert made.opened == [SessionOptions("other", hotwords=[("nine", 2.0)]), SessionOptions()]  # type: ignore[attr-defined]


def test_audio_without_a_start_and_a_stop_without_audio() -> None:
    made = stream([[], []])
    assert [one["type"] for one in send(made, "audio-chunk", bytes(320), **FORMAT)] == ["transcript-start"]
    send(made, "audio-stop")
    assert texts(send(made, "audio-stop"), "transcript") == [""]


def test_unknown_events_are_ignored_and_a_ping_is_answered() -> None:
    made = stream()
    assert send(made, "select-program", name="headsync") == []
    assert send(made, "ping", text="a") == [{"type": "pong", "data": {"text": "a"}}]


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("audio-start", {}, "audio"),
        ("audio-start", {**FORMAT, "width": 4}, "audio"),
        ("audio-start", {**FORMAT, "channels": 2}, "audio"),
        ("audio-start", {**FORMAT, "rate": "16000"}, "audio"),
        ("audio-start", {**FORMAT, "rate": 1}, "audio"),
        ("audio-chunk", {}, "audio"),
        ("transcribe", {"name": 1}, "setting"),
        ("transcribe", {"transcript_names": "nine"}, "setting"),
    ],
)
def test_errors_end_the_connection(kind: str, data: dict[str, Any], code: str) -> None:
    class Strict(Scripted):
        def push(self, samples: Any, sample_rate: int) -> list[Event]:
            if sample_rate < 4000:
                from headsync.errors import AudioError

                raise AudioError("a sample rate of 1 Hz is not possible")
            return super().push(samples, sample_rate)

    made = WyomingStream(build_info([]), lambda _: Strict([]), lambda *_: True, Limits())
    reply = made.receive(WyomingEvent(kind, data, bytes(2)))
    assert reply.messages[-1]["type"] == "error"
    assert reply.messages[-1]["data"]["code"] == code
    assert reply.close_code is not None


def test_too_much_audio_ends_with_the_last_text_and_an_error() -> None:
    made = stream([[], [final(0, "one")]], limits=Limits(stream_seconds=1.0))
    reply = made.receive(WyomingEvent("audio-chunk", FORMAT, bytes(4 * RATE)))
    assert [one["type"] for one in reply.messages] == ["transcript-start", "transcript-chunk", "error"]
    assert reply.messages[-1]["data"]["code"] == "too-long"


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"[]\n",
        b"{}\n",
        b"\xff\n",
        b'{"type": 1}\n',
        b'{"type": "ping", "data": []}\n'.replace(b"[]", b"[1]"),
        b'{"type": "ping", "data_length": -1}\n',
        b'{"type": "ping", "payload_length": 101}\n',
        b'{"type": "ping", "payload_length": "9"}\n',
        b'{"type": "ping", "payload_length": true}\n',
    ],
)
def test_malformed_headers_are_errors(line: bytes) -> None:
    with pytest.raises(StreamError) as caught:
        parse_header(line, 100)
    assert caught.value.code == "message"


def test_an_encoded_event_is_parsed_again() -> None:
    encoded = encode_event({"type": "transcript", "data": {"text": "größer"}})
    line, _, data = encoded.partition(b"\n")
    header = parse_header(line, 1000)
    assert header.data_bytes == len(data)
    assert header.event(data, b"") == WyomingEvent("transcript", {"text": "größer"})


# the client of the package wyoming


@pytest.fixture(scope="module")
def port(service: ModelService) -> Iterator[int]:
    with run(service, Limits(idle_seconds=20.0), access=Access((), {"assist": "digits-en"})) as running:
        yield running.wyoming


def expected(service: ModelService, samples: np.ndarray, rate: int) -> str:
    session = service.open_session()
    events = session.push(samples, rate) + session.finish()
    return " ".join(event.text for event in events if isinstance(event, Final) and event.text)


def test_describe(port: int, service: ModelService, wyoming_client: IsolatedClient) -> None:
    info, pong = wyoming_client.call("wyoming_client.py", "describe", port)[0]
    assert pong == "a"
    (program,) = info["asr"]
    assert program["supports_transcript_streaming"]
    assert program["requires_external_vad"]
    (model,) = program["models"]
    assert (model["name"], model["languages"], model["description"]) == ("digits-en", ["en"], service.description)


def test_recordings_of_one_connection(
    port: int, service: ModelService, recordings: Recordings, wyoming_client: IsolatedClient
) -> None:
    requests = [{"name": "assist", "language": "en"}, {"transcript_names": ["nine", "Kitchen lamp"]}, {}]
    sent = [
        ([piece.tobytes() for piece in np.array_split(samples, 20)], rate, request)
        for (_, samples, rate), request in zip(recordings, requests, strict=False)
    ]
    received, _ = wyoming_client.call("wyoming_client.py", "transcribe_all", port, sent)
    for (path, samples, rate), (texts, chunks) in zip(recordings, received, strict=False):
        text = path.with_suffix(".txt").read_text().strip()
        assert expected(service, samples, rate) == text
        assert (texts, "".join(chunks)) == ([text], text)
    assert len(received) == 3


# a connection


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[TcpConnection]:
    """The server's own reader and writer of events, as a client."""
    connection = TcpConnection(*await asyncio.open_connection("127.0.0.1", port), max_bytes=1 << 20)
    try:
        yield connection
    finally:
        await connection.close()


async def next_event(client: TcpConnection) -> WyomingEvent | None:
    async with asyncio.timeout(60):
        return await client.receive()


def audio(kind: str, payload: bytes = b"") -> bytes:
    header = {"type": kind, "data": FORMAT, "payload_length": len(payload)}
    return json.dumps(header).encode() + b"\n" + payload


async def last_error(port: int, sent: bytes = b"") -> str | None:
    """The code of the error before the server closes the connection."""
    async with connected(port) as client:
        await client.send(sent)
        event = last = None
        while (event := await next_event(client)) is not None:
            last = event
        return last.data["code"] if last else None


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n", "message"),
        (b'{"type": "ping", "payload_length": 99999999}\n', "message"),
        (b"{" + b" " * (1 << 17), "message"),
        (b'{"type": "transcribe", "data": {"name": "english"}}\n{"type": "audio-start", "data": %b}\n', "model"),
    ],
)
def test_errors_are_events(port: int, sent: bytes, code: str) -> None:
    sent = sent.replace(b"%b", json.dumps(FORMAT).encode())
    assert asyncio.run(last_error(port, sent)) == code


def test_silent_clients_are_disconnected_and_a_busy_server_is_an_error(service: ModelService) -> None:
    async def check(state: AppState, port: int) -> None:
        assert await last_error(port) == "idle"
        async with connected(port) as client:
            await client.send(audio("audio-start"))
            assert await next_event(client) is not None
            assert state.limiter.open_streams == 1
            assert await last_error(port) == "busy"

    with run(service, Limits(streams=1, idle_seconds=2.0)) as running:
        asyncio.run(check(running.state, running.wyoming))
        assert b'headsync_rejected_total{reason="busy"} 1.0' in running.state.metrics.render()


def test_a_fault_of_the_server_ends_one_stream(
    service: ModelService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with run(service, Limits()) as running:
        monkeypatch.setattr(running.state, "open_session", lambda _: 1 / 0)
        assert asyncio.run(last_error(running.wyoming, audio("audio-start"))) == "internal"
    assert "a stream failed" in caplog.text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_finishes_a_transcript_before_it_stops(
    service: ModelService, recordings: Recordings, workers: str
) -> None:
    _, samples, rate = recordings[0]
    assert rate == RATE

    async def talk(port: int) -> str:
        async with connected(port) as client:
            first, second = np.array_split(samples, 2)
            await client.send(audio("audio-start") + audio("audio-chunk", first.tobytes()))
            assert await next_event(client) is not None
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            await client.send(audio("audio-chunk", second.tobytes()) + audio("audio-stop"))
            while event := await next_event(client):
                if event.type == "transcript":
                    return str(event.data["text"])
            raise AssertionError("no transcript")

    with started("--wyoming", "0", "--workers", workers) as (process, line):
        (port,) = re.findall(r"tcp://127\.0\.0\.1:(\d+)", line)
        assert asyncio.run(talk(int(port))) == expected(service, samples, rate)
        assert process.wait(60) == 0


def test_a_public_wyoming_port_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from headsync.server import serve

    monkeypatch.setattr(serve, "serve", lambda *_: None)
    result = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--token", "secret", "--wyoming", "10300"])
    assert "can use the Wyoming port" in " ".join(result.output.split())
    assert not CliRunner().invoke(app, ["serve", "--wyoming", "10300"]).output


# announcement


def test_the_server_is_announced() -> None:
    from zeroconf import ServiceBrowser, Zeroconf

    found: list[tuple[int | None, list[str]]] = []
    seen = threading.Event()

    def changed(zeroconf: Zeroconf, service_type: str, name: str, **_: Any) -> None:
        info = zeroconf.get_service_info(service_type, name)
        if info is not None:
            found.append((info.port, info.parsed_addresses()))
            seen.set()

    with mdns.announced(["127.0.0.1"], 10300), Zeroconf(interfaces=["127.0.0.1"]) as network:
        ServiceBrowser(network, mdns.SERVICE, handlers=[changed])
        assert seen.wait(20)
    assert found[0] == (10300, ["127.0.0.1"])


def test_only_addresses_that_others_reach_are_announced() -> None:
    assert mdns.network_addresses("127.0.0.1") == mdns.network_addresses("::1") == []
    assert mdns.network_addresses("192.0.2.1") == ["192.0.2.1"]
    assert not any(address.startswith("127.") for address in mdns.network_addresses("0.0.0.0"))
