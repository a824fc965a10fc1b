"""The WebSocket protocol of `/v1/stream`, without sockets: messages in, messages out.

    client: start ──► audio, audio, ... ──► finish
    server:        ready   events as they occur     the last events, done

The WebSocket handler passes each message in and sends the reply. How the client cuts audio into messages changes only
when events are sent. `docs/reference/server.md` documents the messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from headsync._parse import parse_json
from headsync.config import HOTWORD_BOOST
from headsync.errors import ConfigError, nearest
from headsync.events import Event
from headsync.frontend.audio import SAMPLE_RATE
from headsync.recipe import build, to_float
from headsync.server.errors import NORMAL, StreamError, unknown_model
from headsync.server.limits import Limits
from headsync.server.pcm_stream import AudioSession, PcmStream, SampleFormat, Usage
from headsync.server.session_options import BoostedPhrases, SessionOptions

VERSION = 1

PROGRESS_SECONDS = 0.5  # audio between two progress messages

OpenSession: TypeAlias = Callable[[SessionOptions], AudioSession]


class Reply(NamedTuple):
    """Messages to send, and the code to close the connection with afterwards; None keeps it open."""

    messages: tuple[dict[str, Any], ...] = ()
    close_code: int | None = None
    events: tuple[Event, ...] = ()  # the events that the messages were made from
    close_reason: str = ""  # of the WebSocket's close frame, for a protocol without error messages


@dataclass(frozen=True)
class StartMessage:
    """The first message; a field that is null or missing has its default."""

    version: int = VERSION
    sample_rate: int = SAMPLE_RATE
    format: SampleFormat = "pcm16"
    model: str = ""  # empty: the first model
    attention: bool = False  # send attention messages
    progress: bool = False  # send progress messages


START_FIELDS = {*StartMessage.__annotations__, "settings", "hotwords", "phrases"}


class NativeStream:
    """One connection to `/v1/stream`."""

    name = "stream"

    def __init__(
        self, models: Sequence[str], open_session: OpenSession, limits: Limits, aliases: Mapping[str, str] | None = None
    ) -> None:
        self._models, self._open, self._limits, self._aliases = models, open_session, limits, aliases or {}
        self._next_progress = math.inf  # seconds of audio
        self.audio: PcmStream | None = None

    @property
    def usage(self) -> Usage:
        return Usage().plus(self.audio)

    def opening(self) -> Reply:
        """The server waits for the first message."""
        return Reply()

    def receive(self, message: str | bytes) -> Reply:
        """The reply to one message."""
        try:
            if isinstance(message, bytes):
                return self._push(message)
            kind, rest = _parse(message)
            if kind == "start":
                return self._start(rest)
            if kind == "finish":
                return self._finish()
        except StreamError as error:
            return self.end(error)
        return self.end(StreamError("message", f'The message type "{kind}" is unknown; send "start" or "finish".'))

    def end(self, error: StreamError) -> Reply:
        """The reply that ends the stream with an error; after too much audio or silence, the last events precede it."""
        events: list[Event] = []
        if self.audio is not None and error.code in ("too-long", "idle"):
            events = self.audio.finish()
        messages = *(event.to_dict() for event in events), error.to_dict()
        return Reply(messages, error.close_code, tuple(events))

    def _start(self, fields: dict[str, Any]) -> Reply:
        if self.audio is not None:
            raise StreamError("message", "This stream has already started; open another connection for another stream.")
        start, chosen = _read_start(fields)
        if start.version != VERSION:
            raise StreamError("version", f"Protocol version {start.version} is unknown; send version {VERSION}.")
        model = self._aliases.get(start.model, start.model) or self._models[0]
        if model not in self._models:
            raise unknown_model(model, self._models)
        try:
            session = self._open(replace(chosen, model=model))
        except ConfigError as error:
            raise StreamError("setting", str(error)) from None
        self.audio = PcmStream(session, start.sample_rate, start.format, self._limits.stream_seconds)
        if start.progress:
            self._next_progress = PROGRESS_SECONDS
        return Reply(({"type": "ready", "version": VERSION, "model": model, "limits": self._limits.for_clients()},))

    def _push(self, data: bytes) -> Reply:
        audio = self._started()
        events = audio.push(data)
        messages = tuple(event.to_dict() for event in events)
        if error := audio.length_error:
            last = self.end(error)
            return Reply((*messages, *last.messages), last.close_code, (*events, *last.events))
        if audio.audio_seconds >= self._next_progress:
            self._next_progress = audio.audio_seconds + PROGRESS_SECONDS
            messages = *messages, {"type": "progress", **_seconds(audio)}
        return Reply(messages, None, tuple(events))

    def _finish(self) -> Reply:
        audio = self._started()
        events = audio.finish()
        done = {"type": "done", **_seconds(audio)}
        return Reply((*(event.to_dict() for event in events), done), NORMAL, tuple(events))

    def _started(self) -> PcmStream:
        if self.audio is None:
            raise StreamError("message", 'The stream has not started; send {"type": "start"} before audio and finish.')
        return self.audio


def _seconds(audio: PcmStream) -> dict[str, float]:
    seconds = {"audio_seconds": audio.audio_seconds, "computing_seconds": audio.computing_seconds}
    return {name: round(value, 3) for name, value in seconds.items()}


def read_object(message: str) -> dict[str, Any]:
    """Parse a text message as a JSON object."""
    try:
        fields = parse_json(message)
    except UnicodeEncodeError:
        raise StreamError("message", "The text message escapes a lone surrogate; send valid Unicode.") from None
    except ValueError:
        raise StreamError("message", "The text message is not JSON; send audio as binary messages.") from None
    if not isinstance(fields, dict):
        raise StreamError("message", "The text message is not a JSON object.")
    return fields


def _parse(message: str) -> tuple[str, dict[str, Any]]:
    fields = read_object(message)
    kind = fields.pop("type", None)
    if not isinstance(kind, str):
        raise StreamError("message", 'The message has no type; send, for example, {"type": "finish"}.')
    return kind, fields


def _read_start(fields: dict[str, Any]) -> tuple[StartMessage, SessionOptions]:
    fields = {name: value for name, value in fields.items() if value is not None}
    for name in fields:
        if name not in START_FIELDS:
            raise StreamError("setting", f"start: unknown field {name}{nearest(name, START_FIELDS)}")
    settings, hotwords, phrases = fields.pop("settings", {}), fields.pop("hotwords", []), fields.pop("phrases", [])
    if not isinstance(settings, dict):
        raise StreamError("setting", 'start: settings must be an object, for example {"beam": 4}')
    try:
        start = build(StartMessage, fields, "start")
        chosen = _read_hotwords(hotwords), start.attention, read_phrases(phrases, "start: phrases")
        return start, SessionOptions(start.model, settings, *chosen)
    except ConfigError as error:
        raise StreamError("setting", str(error)) from None


def read_phrases(given: Any, name: str) -> tuple[str, ...]:
    """A phrase list in a message."""
    if not isinstance(given, list) or not all(isinstance(phrase, str) for phrase in given):
        raise ConfigError(f'{name} must be a list of texts, for example ["yes", "no"]')
    return tuple(given)


def _read_hotwords(given: Any) -> BoostedPhrases:
    if not isinstance(given, list):
        raise ConfigError("start: hotwords must be a list of phrases")
    return [_read_hotword(one) for one in given]


def _read_hotword(given: Any) -> tuple[str, float]:
    if isinstance(given, str):
        return given, HOTWORD_BOOST
    if isinstance(given, dict) and given.keys() <= {"phrase", "boost"}:
        phrase, boost = given.get("phrase"), given.get("boost", HOTWORD_BOOST)
        if isinstance(phrase, str) and type(boost) in (int, float):
            return phrase, to_float(boost, "start: boost")
    raise ConfigError('start: a hotword must be a phrase or {"phrase": "...", "boost": 2.0}')
