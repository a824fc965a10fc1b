"""OpenAI's Realtime API for transcription (`/v1/realtime`), without sockets: events in, events out.

A session is configured with `session.update`. Audio is base64 PCM16. With server VAD, the recogniser's endpointer ends
an item; without it, the client does, with `input_audio_buffer.commit`. Deltas carry committed text only, so the
concatenated deltas of an item are its transcript. An error of the client is an error event; the session continues.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headsync.config import HOTWORD_BOOST
from headsync.events import Event, Final, Partial
from headsync.server.base_stream import BaseStream, Messages, OpenSession, Reply, SessionOptions, read_object
from headsync.server.errors import StreamError, require
from headsync.server.limits import Limits
from headsync.server.openai_format import SentText, next_delta

TRANSCRIPTION = "conversation.item.input_audio_transcription"
SERVER_ERRORS = ("busy", "draining", "internal")
FATAL = ("too-long", "idle", "client-limit", *SERVER_ERRORS)  # errors that close the connection
SAMPLE_RATE = 24_000
MOST_SILENCE_MS = 86_400_000  # a day


@dataclass(frozen=True)
class RealtimeConfig:
    """The session as the client configured it."""

    model: str = ""
    language: str | None = None
    keywords: tuple[str, ...] = ()
    sample_rate: int = SAMPLE_RATE
    server_vad: bool = True
    silence_ms: int | None = None  # None: as stored with the model

    def updated(self, session: Any) -> RealtimeConfig:
        """With the fields of a `session.update`; fields that are not mentioned keep their values."""
        require(isinstance(session, dict) and session.get("type") == "transcription", 'type must be "transcription"')
        require(not session.get("include"), "include: log probabilities are not available; leave it empty")
        given = _object(_object(session, "audio"), "input")
        require(given.get("noise_reduction") is None, "audio.input.noise_reduction is not supported; send null")
        config = replace(self, **_read_format(given), **_read_transcription(_object(given, "transcription")))
        return replace(config, **_read_turn_detection(given["turn_detection"])) if "turn_detection" in given else config

    @property
    def options(self) -> SessionOptions:
        settings = {} if self.silence_ms is None else {"pause_seconds": self.silence_ms / 1000}
        return SessionOptions(self.model, settings, [(phrase, HOTWORD_BOOST) for phrase in self.keywords])

    def to_dict(self) -> dict[str, Any]:
        vad = {"type": "server_vad", "silence_duration_ms": self.silence_ms} if self.server_vad else None
        transcription = {"model": self.model, "language": self.language, "keywords": list(self.keywords)}
        pcm = {"type": "audio/pcm", "rate": self.sample_rate}
        audio = {"input": {"format": pcm, "transcription": transcription, "turn_detection": vad}}
        return {"type": "transcription", "object": "realtime.transcription_session", "audio": audio, "include": []}


def _object(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    require(value is None or isinstance(value, dict), f"{name} must be an object")
    return value or {}


def _read_format(given: dict[str, Any]) -> dict[str, Any]:
    audio_format = _object(given, "format")
    require(audio_format.get("type", "audio/pcm") == "audio/pcm", 'audio.input.format.type must be "audio/pcm"')
    rate = audio_format.get("rate") or SAMPLE_RATE
    require(type(rate) is int, "audio.input.format.rate must be an integer")
    return {"sample_rate": rate} if audio_format else {}


def _read_transcription(given: dict[str, Any]) -> dict[str, Any]:
    fields = {name: given[name] for name in ("model", "language", "keywords") if given.get(name) is not None}
    for name in ("model", "language"):
        require(isinstance(fields.get(name, ""), str), f"audio.input.transcription.{name} must be a string")
    keywords = fields.get("keywords", [])
    valid = isinstance(keywords, list) and all(isinstance(keyword, str) for keyword in keywords)
    require(valid, "audio.input.transcription.keywords must be a list of strings")
    return {**fields, **({"keywords": tuple(keywords)} if "keywords" in fields else {})}


def _read_turn_detection(given: Any) -> dict[str, Any]:
    if given is None:
        return {"server_vad": False, "silence_ms": None}
    valid = isinstance(given, dict) and given.get("type") == "server_vad"
    require(valid, 'audio.input.turn_detection must be null or of type "server_vad"')
    silence = given.get("silence_duration_ms")
    valid = silence is None or (type(silence) is int and abs(silence) <= MOST_SILENCE_MS)
    require(valid, f"turn_detection.silence_duration_ms must be an integer up to {MOST_SILENCE_MS}")
    return {"server_vad": True, "silence_ms": silence}


class RealtimeStream(BaseStream[str | bytes]):
    """One connection to `/v1/realtime`. `model_name` resolves an alias and raises StreamError for unknown models."""

    name = "realtime"

    def __init__(
        self, model_name: Callable[[str], str], open_session: OpenSession, limits: Limits, model: str = ""
    ) -> None:
        super().__init__(open_session, limits)
        self._model_name, self._model = model_name, model
        self._config = RealtimeConfig()
        self._id, self._events, self._items = secrets.token_hex(6), 0, 0
        self._item: str | None = None  # the item whose text is being sent
        self._previous_item: str | None = None
        self._sent = SentText()
        self._start_seconds = 0.0  # of the current item

    def _greet(self) -> Reply:
        self._config = replace(self._config, model=self._model_name(self._model))
        return Reply((self._event("session.created", session=self._session()),))

    def _answer(self, message: str | bytes) -> Reply:
        fields: dict[str, Any] = {}
        try:
            require(
                isinstance(message, str), "A binary message is not supported; send audio with input_audio_buffer.append"
            )
            fields = read_object(str(message))
            return self._handle(fields)
        except StreamError as error:
            if error.code in FATAL:
                raise
            return Reply((self._error(error, fields.get("event_id")),))

    def _handle(self, fields: dict[str, Any]) -> Reply:
        kind = fields.get("type")
        if kind == "session.update":
            return self._update(fields.get("session"))
        if kind == "input_audio_buffer.append":
            return self._append(fields.get("audio"))
        if kind == "input_audio_buffer.commit":
            return self._commit()
        if kind == "input_audio_buffer.clear":
            self._leave_audio()
            self._item, self._sent = None, SentText()
            return Reply((self._event("input_audio_buffer.cleared"),))
        raise StreamError("message", f'The event type "{kind}" is not supported by transcription sessions.')

    def _update(self, session: Any) -> Reply:
        require(self.audio is None, "session.update must precede the audio of an item; commit or clear it first")
        config = self._config.updated(session)
        config = replace(config, model=self._model_name(config.model))
        self._open_audio(config.options, config.sample_rate)  # raises for settings that the model does not accept
        self._config = config
        return Reply((self._event("session.updated", session=self._session()),))

    def _append(self, audio: Any) -> Reply:
        try:
            data = base64.b64decode(audio, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise StreamError("audio", "audio must be a base64 string of 16-bit samples.") from None
        if self.audio is None:
            self.audio = self._open_audio(self._config.options, self._config.sample_rate)
            self._start_seconds = self._before.audio_seconds
        return self._push(self.audio, data)

    def _commit(self) -> Reply:
        require(
            self.audio is not None and self.audio.audio_seconds > 0,
            "The audio buffer is empty; append audio before the commit",
        )
        assert self.audio is not None
        events, completed = self.audio.finish(), self._items
        messages = self._messages(events)
        end_seconds = self.usage.audio_seconds
        if not self._config.server_vad or self._items == completed:
            messages += self._complete(end_seconds)
        self._leave_audio()
        return Reply(tuple(messages), None, tuple(events))

    def _messages(self, events: Sequence[Event]) -> Messages:
        messages: Messages = []
        for event in events:
            if not isinstance(event, Partial | Final):
                continue
            if event.words and self._item is None and self._config.server_vad:
                messages.append(self._speech_started(event.words[0].start_seconds))
            text, self._sent = next_delta(self._sent, event)
            if text:
                delta = {"item_id": self._current_item(), "content_index": 0, "delta": text}
                messages.append(self._event(f"{TRANSCRIPTION}.delta", **delta))
            if isinstance(event, Final) and self._item and self._config.server_vad:
                end_seconds = self._before.audio_seconds + event.time_seconds
                stopped = {"audio_end_ms": round(1000 * end_seconds), "item_id": self._item}
                messages.append(self._event("input_audio_buffer.speech_stopped", **stopped))
                messages += self._complete(end_seconds)
        return messages

    def _speech_started(self, seconds: float) -> dict[str, Any]:
        self._start_seconds = self._before.audio_seconds + seconds
        milliseconds = round(1000 * self._start_seconds)
        return self._event(
            "input_audio_buffer.speech_started", audio_start_ms=milliseconds, item_id=self._current_item()
        )

    def _complete(self, end_seconds: float) -> Messages:
        """The events that end an item."""
        item, previous = self._current_item(), self._previous_item
        usage = {"type": "duration", "seconds": round(max(0.0, end_seconds - self._start_seconds), 3)}
        content = [{"type": "input_audio", "transcript": None}]
        message = {"id": item, "object": "realtime.item", "type": "message", "role": "user", "status": "completed"}
        done = {"item_id": item, "content_index": 0, "transcript": self._sent.text, "usage": usage}
        self._item, self._previous_item, self._sent, self._start_seconds = None, item, SentText(), end_seconds
        self._items += 1
        return [
            self._event("input_audio_buffer.committed", item_id=item, previous_item_id=previous),
            self._event("conversation.item.added", previous_item_id=previous, item={**message, "content": content}),
            self._event(f"{TRANSCRIPTION}.completed", **done),
        ]

    def _current_item(self) -> str:
        self._item = self._item or f"item_{self._id}_{self._items + 1}"
        return self._item

    def _session(self) -> dict[str, Any]:
        return {"id": f"sess_{self._id}", **self._config.to_dict()}

    def _error(self, error: StreamError, event_id: Any = None) -> dict[str, Any]:
        kind = "server_error" if error.code in SERVER_ERRORS else "invalid_request_error"
        caused_by = event_id if isinstance(event_id, str) else None
        details = {"type": kind, "code": error.code, "message": str(error), "param": None, "event_id": caused_by}
        return self._event("error", error=details | error.retry)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._events += 1
        return {"type": kind, "event_id": f"event_{self._id}_{self._events}", **fields}
