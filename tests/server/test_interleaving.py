"""A model of the server: any interleaving of streams over three protocols and two models, against each stream alone.

Whatever is connected, sent, paused, aborted, finished, refused or uploaded: the texts of a stream are those of the
stream alone, and afterwards slots, gauges, waiting calls, open files and the objects of streams are what they were at
the start.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from headsync.engine import Engine
from headsync.model_folder import CHECKSUMS, VOCABULARY, shipped
from headsync.recognizer import Recognizer, Session
from headsync.server.app_state import AppState
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from headsync.server.openai_realtime import RealtimeStream
from headsync.server.pcm_stream import PcmStream
from headsync.server.protocol import NativeStream
from headsync.server.vosk import VoskStream
from headsync.server.websocket import WebSocketConnection
from headsync.text.vocabulary import Vocabulary
from serving import run

LIMITS = Limits(streams=4, stream_seconds=8.0, idle_seconds=60.0)
MODELS = ("digits-en", "digits-de")
PATHS = {"stream": "/v1/stream", "vosk": "/vosk", "realtime": "/v1/realtime"}
GERMAN = ("acht", "fünf", "vier", "neun", "eins", "sieben", "sechs", "drei", "zwei", "null")
PROBLEM = '{"type": "finish", "nonsense": '
SIZES = st.sampled_from([1, 333, 6400, 32_000, 160_000])
Recordings = list[tuple[Path, np.ndarray, int]]


@dataclass
class Client:
    """One stream: its connection, and every message that was sent."""

    kind: str
    model: str
    connection: ClientConnection
    audio: bytes
    rate: int
    sent: list[str | bytes] = field(default_factory=list)
    place: int = 0

    @property
    def within_limit(self) -> bool:
        """Whether the server keeps the stream open; a longer one it ends itself."""
        return self.place / 2 / self.rate <= LIMITS.stream_seconds

    def send(self, message: str | bytes) -> None:
        self.sent.append(message)
        self.connection.send(message)

    def send_audio(self, size: int) -> None:
        piece = self.audio[self.place : self.place + size]
        self.place += len(piece)
        self.send(_audio_message(self.kind, piece))

    def finish(self) -> list[dict[str, Any]]:
        """Send the end, and read all messages."""
        with suppress(ConnectionClosed):  # the stream was too long
            for message in _last_messages(self.kind):
                self.send(message)
        return self.read_all()

    def read_all(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        try:
            while not messages or messages[-1].get("type") != "input_audio_buffer.cleared":
                messages.append(json.loads(self.connection.recv(timeout=60)))
        except ConnectionClosed:
            pass
        self.connection.close()
        return messages


def _audio_message(kind: str, piece: bytes) -> str | bytes:
    if kind != "realtime":
        return piece
    return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(piece).decode()})


def _first_message(kind: str, model: str, rate: int) -> dict[str, Any]:
    if kind == "stream":
        return {"type": "start", "model": model, "sample_rate": rate}
    if kind == "vosk":
        return {"config": {"sample_rate": rate}}
    given = {"format": {"type": "audio/pcm", "rate": rate}, "transcription": {"model": model}}
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": given}}}


def _last_messages(kind: str) -> list[str]:
    if kind == "realtime":
        return ['{"type": "input_audio_buffer.commit"}', '{"type": "input_audio_buffer.clear"}']
    return ['{"type": "finish"}' if kind == "stream" else '{"eof": 1}']


def _texts(kind: str, messages: list[dict[str, Any]]) -> list[str]:
    if kind == "realtime":
        return [message["transcript"] for message in messages if message["type"].endswith(".completed")]
    if kind == "vosk":
        return [message["text"] for message in messages if message.get("text")]
    return [message["text"] for message in messages if message["type"] == "final"]


def _error(messages: list[dict[str, Any]]) -> str | None:
    errors = (message for message in messages if message.get("type") == "error")
    return next((error.get("code") or error["error"]["code"] for error in errors), None)


class SlowEngine:
    """An engine whose every call takes some milliseconds, so that the calls of several streams meet in batches."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.most_rows = 0  # of a call of the encoder

    def __getattr__(self, name: str) -> Any:
        if name in ("embed", "encode", "decode"):
            time.sleep(0.003)
        return getattr(self._inner, name)

    def encode(self, x_BWE: Any, *others: Any) -> Any:
        time.sleep(0.003)
        self.most_rows = max(self.most_rows, len(x_BWE))
        return self._inner.encode(x_BWE, *others)


def _slow(recognizer: Recognizer) -> tuple[Recognizer, SlowEngine]:
    engine = SlowEngine(recognizer.engine)
    return recognizer.changed({}, engine=engine), engine


PER_STREAM = {Session, PcmStream, NativeStream, VoskStream, RealtimeStream, WebSocketConnection, asyncio.Task}


def _live_objects() -> Counter[type]:
    """The objects that a stream holds, of all streams in this process."""
    gc.collect()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a tuple that another thread is building must not get a second reference
    time.sleep(0.02)  # threads that wait with the former interval
    try:
        return Counter(type(one) for one in gc.get_objects() if type(one) in PER_STREAM)
    finally:
        sys.setswitchinterval(interval)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "this did not become true"
        time.sleep(0.005)


class Streams(RuleBasedStateMachine):
    """Streams of one server; the reference is the protocol without sockets, one stream at a time."""

    services: ClassVar[list[ModelService]]
    alone: ClassVar[AppState]  # without batching
    recordings: ClassVar[Recordings]
    words: ClassVar[int]  # of texts that were compared
    most_sessions: ClassVar[int]  # that were open at the end of an example
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.files = _open_files()
        self.running = run(self.services, LIMITS)
        self.server, self.connections = self.running.__enter__(), ExitStack()
        self.objects = _live_objects()
        self.live: list[Client] = []
        self.ended, self.busy = 0, 0

    @property
    def open(self) -> int:
        return sum(client.within_limit for client in self.live)

    @rule(
        target=clients,
        kind=st.sampled_from(sorted(PATHS)),
        model=st.sampled_from(MODELS),
        take=st.integers(0, 5),
        twice=st.booleans(),
    )
    def connect(self, kind: str, model: str, take: int, twice: bool) -> Client | None:
        self._settled()
        _, samples, rate = self.recordings[take]
        model = MODELS[0] if kind == "vosk" else model
        connection = self.connections.enter_context(connect(self.server.ws(PATHS[kind]), proxy=None, max_queue=None))
        client = Client(kind, model, connection, samples.tobytes() * (1 + twice), rate)
        if self.open == LIMITS.streams:
            assert _error(client.read_all()) == ("busy" if kind != "vosk" else None)
            self.busy += 1
            return None
        client.send(json.dumps(_first_message(kind, model, rate)))
        self.live.append(client)
        self._settled()
        return client

    @rule(client=clients, size=SIZES)
    def send(self, client: Client | None, size: int) -> None:
        if client in self.live:
            try:
                client.send_audio(size)
            except ConnectionClosed:
                client.sent.pop()  # the stream was already too long

    @rule(size=SIZES)
    def send_to_all(self, size: int) -> None:
        for client in self.live:
            self.send(client, size)

    @rule(seconds=st.sampled_from([0.0, 0.02]))
    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    @rule(client=consumes(clients))
    def finish(self, client: Client | None) -> None:
        if client is not None:
            messages = client.finish()
            expected = self._reference(client)
            assert _texts(client.kind, messages) == _texts(client.kind, expected)
            assert _error(messages) == _error(expected)
            Streams.words += sum(len(text.split()) for text in _texts(client.kind, expected))
            self._left(client)

    @rule(client=consumes(clients), politely=st.booleans())
    def abort(self, client: Client | None, politely: bool) -> None:
        if client is not None:
            if not politely:
                client.connection.socket.shutdown(2)
            client.connection.close()
            self._left(client)

    @rule(client=consumes(clients))
    def send_nonsense(self, client: Client | None) -> None:
        """A message that is not JSON ends the stream; a Realtime session answers and continues."""
        if client is None:
            return
        with suppress(ConnectionClosed):  # the stream was too long
            client.send(PROBLEM)
        if client.kind == "realtime":
            client.finish()
        else:
            messages = client.read_all()
            assert _error(messages) in (("too-long", "message") if client.kind == "stream" else (None,))
        self._left(client)

    @rule(take=st.integers(0, 5), model=st.sampled_from(MODELS))
    def upload(self, take: int, model: str) -> None:
        self._settled()
        path = self.recordings[take][0]
        with path.open("rb") as file:
            answer = httpx.post(
                f"{self.server.http}/v1/audio/transcriptions", data={"model": model}, files={"file": file}, timeout=60
            )
        if self.open == LIMITS.streams:
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            self.busy += 1
        elif answer.status_code == 400:
            assert answer.json()["error"]["code"] == "too-long"
        else:
            finals = self._recognizer(model).transcribe(path)
            assert answer.json()["text"] == " ".join(final.text for final in finals)

    @precondition(lambda self: self.open == 0)
    @invariant()
    def nothing_is_left(self) -> None:
        self._settled()

    def teardown(self) -> None:
        """Let the streams that are still open end together."""
        self.send_to_all(128_000)
        Streams.most_sessions = max(Streams.most_sessions, _live_objects()[Session] - self.objects[Session])
        for client in list(self.live):
            self.finish(client)
        self.connections.close()
        _eventually(lambda: _live_objects() <= self.objects)
        limiter, metrics = self.server.state.limiter, self.server.state.metrics
        assert (limiter.silent_connections, +limiter.client_streams) == (0, Counter())
        assert metrics.waiting_calls._value.get() == 0
        self.running.__exit__(None, None, None)
        assert limiter.open_streams == 0
        assert all(metrics.open_streams.labels(kind)._value.get() == 0 for kind in (*PATHS, "recording"))
        assert all(service.batching is not None and service.batching.waiting == 0 for service in self.services)
        assert metrics.rejected.labels("busy")._value.get() == self.busy
        ended = {
            kind: sum(metrics.ended_streams.labels(kind, how)._value.get() for how in ("done", "error", "disconnected"))
            for kind in PATHS
        }
        assert sum(ended.values()) == self.ended
        _eventually(lambda: _open_files() <= self.files)  # sockets may be closed a moment later

    def _left(self, client: Client) -> None:
        self.ended += 1
        self.live.remove(client)
        self._settled()

    def _settled(self) -> None:
        """The server has counted exactly the streams that have started and ended."""
        _eventually(lambda: self.server.state.limiter.open_streams == self.open)

    def _recognizer(self, model: str) -> Recognizer:
        return self.alone.services[model]._default

    def _reference(self, client: Client) -> list[dict[str, Any]]:
        """The replies to the same messages in a single stream."""
        opened = self.alone.open_session
        protocol: NativeStream | VoskStream | RealtimeStream
        if client.kind == "stream":
            protocol = NativeStream(MODELS, opened, LIMITS)
        elif client.kind == "vosk":
            protocol = VoskStream(opened, LIMITS)
        else:
            protocol = RealtimeStream(lambda name: self.alone.service(name).name, opened, LIMITS)
        replies = [protocol.opening()]
        for message in client.sent:
            if replies[-1].close_code is None:
                replies.append(protocol.receive(message))
        return [message for reply in replies for message in reply.messages]


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    """The shipped model with other words: a text shows which model wrote it."""
    copy = tmp_path_factory.mktemp("models") / MODELS[1]
    shutil.copytree(shipped()[MODELS[0]], copy, ignore=shutil.ignore_patterns(CHECKSUMS))
    Vocabulary("words", GERMAN).save(copy / VOCABULARY)
    return Recognizer.load(copy)


def _run(recognizers: list[Recognizer], recordings: Recordings, examples: int, steps: int) -> None:
    named = list(zip(recognizers, MODELS, strict=True))
    slow = [_slow(one) for one, _ in named]
    Streams.services = [
        ModelService(one, (), batching=True, name=name) for (one, _), name in zip(slow, MODELS, strict=True)
    ]
    alone = [ModelService(one, (), batching=False, name=name) for one, name in named]
    Streams.alone, Streams.recordings = AppState(alone, LIMITS), recordings
    Streams.words = Streams.most_sessions = 0
    case = Streams.TestCase
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # shrinking would take minutes
        suppress_health_check=checks,
    )
    case("runTest").runTest()
    assert Streams.words > 10 * len(MODELS), "the examples compare too little"
    assert Streams.most_sessions > 0, "no example had objects of open streams"
    assert max(engine.most_rows for _, engine in slow) > 1, "no calls met in a batch"


def test_any_interleaving(recognizer: Recognizer, german: Recognizer, recordings: Recordings) -> None:
    _run([recognizer, german], recordings, examples=8, steps=25)


@pytest.mark.slow
def test_many_interleavings(recognizer: Recognizer, german: Recognizer, recordings: Recordings) -> None:
    _run([recognizer, german], recordings, examples=200, steps=60)
