"""The Wyoming protocol of Home Assistant for speech recognition, without sockets: events in, events out.

    client: transcribe, audio-start ──► audio-chunk, audio-chunk, ... ──► audio-stop
    server:             transcript-start   transcript-chunk, ...          transcript, transcript-stop

An event is a line of JSON, then `data_length` bytes of JSON, then `payload_length` bytes of audio. Chunks of the
transcript carry committed text only, so the concatenated chunks are the transcript. A connection can be used for
several transcripts. Unknown events are ignored, as the protocol requires.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import headsync
from headsync.config import HOTWORD_BOOST
from headsync.events import Event
from headsync.server.base_stream import BaseStream, Messages, OpenSession, Reply, SessionOptions, read_object
from headsync.server.errors import StreamError
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from headsync.server.openai_format import SentText, next_delta

FORMAT = {"width": 2, "channels": 1}  # 16-bit samples of one channel


class WyomingEvent(NamedTuple):
    type: str
    data: dict[str, Any]
    payload: bytes = b""


class Header(NamedTuple):
    """The first line of an event; the data and the payload follow it."""

    type: str
    data: dict[str, Any]
    data_bytes: int
    payload_bytes: int

    def event(self, data: bytes, payload: bytes) -> WyomingEvent:
        """The event, with the bytes that follow the line."""
        return WyomingEvent(self.type, self.data | (read_object(_text(data)) if data else {}), payload)


def parse_header(line: bytes, max_bytes: int) -> Header:
    fields = read_object(_text(line))
    kind, data = fields.get("type"), fields.get("data") or {}
    sizes = [fields.get(name) or 0 for name in ("data_length", "payload_length")]
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise StreamError("message", "The event has no type, or its data is not an object.")
    if not all(type(size) is int and 0 <= size <= max_bytes for size in sizes):
        raise StreamError("message", f"data_length and payload_length must be integers up to {max_bytes}.")
    return Header(kind, data, *sizes)


def encode_event(event: dict[str, Any]) -> bytes:
    """The bytes of an event with `type` and `data`."""
    data = json.dumps(event.get("data", {}), ensure_ascii=False).encode()
    header = {"type": event["type"], "version": headsync.__version__, "data_length": len(data)}
    return json.dumps(header).encode() + b"\n" + data


def build_info(models: Iterable[ModelService]) -> dict[str, Any]:
    """The answer to `describe`."""
    common = {"attribution": {"name": "headsync", "url": ""}, "installed": True, "version": headsync.__version__}
    described = [
        {"name": model.name, "description": model.description, "languages": list(model.languages), **common}
        for model in models
    ]
    program = {"name": "headsync", "description": "Streaming speech recognition", "models": described, **common}
    return {"type": "info", "data": {"asr": [{**program, "supports_transcript_streaming": True}]}}


class WyomingStream(BaseStream[WyomingEvent]):
    """One connection. `can_write(model, phrase)` is whether a model can write a phrase."""

    name = "wyoming"

    def __init__(
        self, info: dict[str, Any], open_session: OpenSession, can_write: Callable[[str, str], bool], limits: Limits
    ) -> None:
        super().__init__(open_session, limits)
        self._info, self._can_write = info, can_write
        self._options = SessionOptions()
        self._sent = SentText()

    def _error(self, error: StreamError) -> dict[str, Any]:
        return {"type": "error", "data": {"text": str(error), "code": error.code, **error.retry}}

    def _answer(self, event: WyomingEvent) -> Reply:
        if event.type == "describe":
            return Reply((self._info,))
        if event.type == "ping":
            return Reply(({"type": "pong", "data": {"text": event.data.get("text")}},))
        if event.type == "transcribe":
            self._options = self._read_options(event.data)
        elif event.type == "audio-start":
            return self._start(event.data)
        elif event.type == "audio-chunk":
            return self._push_chunk(event)
        elif event.type == "audio-stop":
            return self._stop()
        return Reply()

    def _read_options(self, data: dict[str, Any]) -> SessionOptions:
        """The model and the phrases to favour; phrases that the model cannot write are left out."""
        model = data.get("name") or ""
        names, terms = (data.get(name) or [] for name in ("transcript_names", "transcript_terms"))
        if not (isinstance(model, str) and isinstance(names, list) and isinstance(terms, list)):
            raise StreamError("setting", "name must be a string, transcript_names and transcript_terms lists.")
        phrases = [phrase for phrase in names + terms if isinstance(phrase, str) and self._can_write(model, phrase)]
        return SessionOptions(model, hotwords=[(phrase, HOTWORD_BOOST) for phrase in phrases[: self._limits.hotwords]])

    def _start(self, data: dict[str, Any]) -> Reply:
        if any(data.get(name) != value for name, value in FORMAT.items()) or type(data.get("rate")) is not int:
            raise StreamError("audio", "audio-start must have an integer rate, width 2 and channels 1.")
        self._leave_audio()
        self.audio, self._sent = self._open_audio(self._options, data["rate"]), SentText()
        return Reply(({"type": "transcript-start"},))

    def _push_chunk(self, event: WyomingEvent) -> Reply:
        started = () if self.audio is not None else self._start(event.data).messages
        assert self.audio is not None
        reply = self._push(self.audio, event.payload)
        return reply._replace(messages=(*started, *reply.messages))

    def _stop(self) -> Reply:
        events = self.audio.finish() if self.audio is not None else []
        messages = *self._messages(events), {"type": "transcript", "data": {"text": self._sent.text}}
        self._leave_audio()
        self._sent, self._options = SentText(), SessionOptions()
        return Reply((*messages, {"type": "transcript-stop"}), None, tuple(events))

    def _messages(self, events: Sequence[Event]) -> Messages:
        chunks: Messages = []
        for event in events:
            text, self._sent = next_delta(self._sent, event)
            if text:
                chunks.append({"type": "transcript-chunk", "data": {"text": text}})
        return chunks


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise StreamError("message", "The event is not UTF-8.") from None
