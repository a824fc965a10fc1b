"""Harnesses of the server: the messages of the four WebSocket protocols, events of Wyoming, and uploads.

The bytes of a WebSocket harness are lines. A first line that begins with "?" is the query of the address. A line that
begins with "@" is a binary message, any other a text message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from starlette.datastructures import QueryParams

from fuzz.harness import DEMO_MODEL, Harness, check_sentence
from fuzz.wav import wav
from headsync.recognizer import Recognizer
from headsync.server.app import build_app
from headsync.server.app_state import AppState
from headsync.server.base_stream import BaseStream
from headsync.server.deepgram import DeepgramStream
from headsync.server.errors import INTERNAL
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from headsync.server.openai_realtime import RealtimeStream
from headsync.server.protocol import NativeStream
from headsync.server.vosk import VoskStream
from headsync.server.wyoming import WyomingEvent, WyomingStream, build_info, encode_event
from headsync.server.wyoming_server import HEADER_BYTES, TcpConnection

LIMITS = Limits(stream_seconds=2.0, request_bytes=1 << 16)
OpenProtocol = Callable[[QueryParams], BaseStream[str | bytes]]
AUDIO = b"@" + bytes(range(11, 251)) * 4
TRANSCRIBE = "/v1/audio/transcriptions"


@cache
def state() -> AppState:
    return AppState([ModelService(Recognizer.load(DEMO_MODEL), (), batching=False)], LIMITS)


def native_stream(query: QueryParams) -> BaseStream[str | bytes]:
    return NativeStream([DEMO_MODEL], state().open_session, LIMITS, query=query)


def vosk_stream(_: QueryParams) -> BaseStream[str | bytes]:
    return VoskStream(state().open_session, LIMITS)


def realtime_stream(query: QueryParams) -> BaseStream[str | bytes]:
    return RealtimeStream(lambda name: state().service(name).name, state().open_session, LIMITS, query.get("model", ""))


def deepgram_stream(query: QueryParams) -> BaseStream[str | bytes]:
    return DeepgramStream(query.multi_items(), state().open_session, LIMITS, "id")


def exchange(open_protocol: OpenProtocol, data: bytes) -> None:
    """Pass the messages; every reply is JSON in UTF-8, and none is a fault of the server."""
    head, _, rest = data.partition(b"\n")
    query, data = (head[1:], rest) if head.startswith(b"?") else (b"", data)
    protocol = open_protocol(QueryParams(query))
    replies = [protocol.opening()]
    for line in data.split(b"\n"):
        if replies[-1].close_code is not None:
            return
        try:
            message = line[1:] if line.startswith(b"@") else line.decode()
        except UnicodeDecodeError:
            continue  # the WebSocket layer closes the connection
        reply = protocol.receive(message)
        assert reply.close_code != INTERNAL
        for answer in reply.messages:
            json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()
        replies.append(reply)


def _lines(*messages: dict[str, Any] | bytes) -> bytes:
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages)


def _stream_seeds() -> list[bytes]:
    chosen = {
        "settings": {"beam": 2, "ctc_weight": 0.5, "pause_seconds": 0.6},
        "hotwords": ["one", {"phrase": "two", "boost": 3}],
    }
    return [
        _lines({"type": "start"}, AUDIO, AUDIO, {"type": "finish"}),
        _lines({"type": "start", "version": 1, "sample_rate": 8000, "format": "float32", "model": DEMO_MODEL}, b"@"),
        _lines({"type": "start", "attention": True, "progress": True, **chosen}, AUDIO, {"type": "finish"}),
        b"?lookahead_ms=160&threshold=0.75&pause_seconds=0.5\n" + _lines({"type": "start"}, AUDIO, {"type": "finish"}),
    ]  # fmt: skip


def _vosk_seeds() -> list[bytes]:
    config = {"config": {"sample_rate": 16000, "words": True, "max_alternatives": 3}}
    return [_lines(config, AUDIO, {"reset": 1}, AUDIO, {"eof": 1}), _lines(AUDIO, {"eof": 1})]


def _realtime_seeds() -> list[bytes]:
    audio = {"input": {
        "format": {"type": "audio/pcm", "rate": 24000}, "noise_reduction": None,
        "transcription": {"model": DEMO_MODEL, "language": "en", "keywords": ["one"]},
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
    }}  # fmt: skip
    update = {"type": "session.update", "session": {"type": "transcription", "audio": audio, "include": []}}
    append = {"type": "input_audio_buffer.append", "audio": "AAEC" * 200, "event_id": "x"}
    commit, clear = {"type": "input_audio_buffer.commit"}, {"type": "input_audio_buffer.clear"}
    return [_lines(update, append, commit, append, clear), _lines(append, append, commit)]


def _deepgram_seeds() -> list[bytes]:
    query = b"?encoding=linear16&sample_rate=16000&interim_results=true&vad_events=true&endpointing=300&keyterm=one:2\n"
    finalize, close = {"type": "Finalize"}, {"type": "CloseStream"}
    return [query + _lines(AUDIO, {"type": "KeepAlive"}, AUDIO, finalize, AUDIO, close), query + _lines(AUDIO, b"@")]


async def _events(data: bytes) -> list[WyomingEvent]:
    """The events in the bytes, as the server reads them from a connection."""
    reader = asyncio.StreamReader(HEADER_BYTES)
    reader.feed_data(data)
    reader.feed_eof()
    writer = SimpleNamespace(get_extra_info=lambda name: None)  # as after a reset; it only reads
    connection = TcpConnection(reader, writer, LIMITS.message_bytes)  # type: ignore[arg-type]
    return [event async for event in _until_closed(connection)]


async def _until_closed(connection: TcpConnection) -> AsyncIterator[WyomingEvent]:
    while (event := await connection.receive()) is not None:
        yield event


def wyoming(data: bytes) -> None:
    """Events get replies that can be encoded, and none is a fault of the server."""
    can_write = state().service().can_write
    info = build_info(state().services.values())
    protocol = WyomingStream(info, state().open_session, lambda _, phrase: can_write(phrase), LIMITS)
    for event in _runner().run(_events(data)):
        reply = protocol.receive(event)
        assert reply.close_code != INTERNAL
        for answer in reply.messages:
            json.dumps(answer, allow_nan=False)
            encode_event(answer)
        if reply.close_code is not None:
            return


def _wyoming_seeds() -> list[bytes]:
    form = {"rate": 16000, "width": 2, "channels": 1}
    chunk = json.dumps({"type": "audio-chunk", "data": form, "payload_length": len(AUDIO)}).encode() + b"\n" + AUDIO
    terms = {"name": DEMO_MODEL, "transcript_names": ["one"], "transcript_terms": ["two"]}
    events = [{"type": "describe"}, {"type": "transcribe", "data": terms}, {"type": "audio-start", "data": form}]
    stop = encode_event({"type": "audio-stop", "data": {}})
    return [b"".join(map(encode_event, events)) + chunk + chunk + stop, chunk + stop + encode_event({"type": "ping"})]


async def post(head: bytes, body: bytes) -> tuple[int, bytes]:
    """The status and body of the answer to an upload; the content type comes from outside, too."""
    headers = [(b"host", b"x"), (b"content-type", head.strip()[:200]), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": TRANSCRIBE,
        "raw_path": TRANSCRIBE.encode(), "query_string": b"", "headers": headers, "client": ("c", 1),
        "server": ("s", 1), "scheme": "http", "root_path": "",
    }  # fmt: skip
    received = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return received.pop(0) if received else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app()(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@cache
def app() -> Any:
    return build_app(state())


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def upload(data: bytes) -> None:
    """An upload gets an answer in the form of the API, without a path of the server."""
    head, _, body = data.partition(b"\n")
    status, answer = _runner().run(post(head, body))
    assert status < 500, answer
    assert b"/tmp" not in answer.replace(body, b""), answer
    if status != 200:
        check_sentence(json.loads(answer)["error"]["message"])


def _upload_seeds() -> list[bytes]:
    def field(name: str, value: bytes) -> bytes:
        return b'--B\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value + b"\r\n"

    def file(name: bytes, content: bytes) -> bytes:
        head = (
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="'
            + name
            + b'"\r\nContent-Type: audio/wav\r\n\r\n'
        )
        return head + content + b"\r\n"

    kind = b"multipart/form-data; boundary=B\n"
    fields = field("model", DEMO_MODEL.encode()) + field("response_format", b"verbose_json") + field("stream", b"false")
    more = field("timestamp_granularities[]", b"word") + field("language", b"en")
    return [
        kind + fields + more + file(b"a.wav", wav(800)) + b"--B--\r\n",
        kind + field("model", DEMO_MODEL.encode()) + file(b"../a", b"no audio") + b"--B--\r\n",
        b"application/x-www-form-urlencoded\nmodel=digits-en&file=x",
    ]


def _websocket(open_protocol: OpenProtocol, seeds: Callable[[], list[bytes]], words: bytes) -> Harness:
    common = [b"\n@", b"\n{", b"9" * 320, b"[" * 64, *rb'null NaN Infinity 1e400 -1 \ud800 {"type":'.split()]
    return Harness(lambda data: exchange(open_protocol, data), seeds, [*common, *words.split()], native=True)


MESSAGES = {
    "stream": _websocket(
        native_stream,
        _stream_seeds,
        b'"start" "settings" "longest_seconds" "silence_seconds" "nbest" "boost" "hotwords"',
    ),
    "vosk": _websocket(vosk_stream, _vosk_seeds, b'"config" "sample_rate" "max_alternatives" "reset" "eof"'),
    "realtime": _websocket(
        realtime_stream, _realtime_seeds, b'"turn_detection" "silence_duration_ms" "rate" "keywords" "noise_reduction"'
    ),
    "deepgram": _websocket(
        deepgram_stream, _deepgram_seeds, '&sample_rate= &endpointing= &keywords=a:nan ² "Finalize"'.encode()
    ),
    "wyoming": Harness(
        wyoming,
        _wyoming_seeds,
        [b"9" * 320, b"[" * 64, b"}\n{", *b'"data_length": "payload_length": "audio-chunk" null -1 1e400'.split()],
        native=True,
    ),
    "upload": Harness(
        upload,
        _upload_seeds,
        [b"--B\r\n", b"Content-Disposition: ", *b"--B-- charset= name= filename*=utf-8'' base64".split()],
        native=True,
    ),
}
