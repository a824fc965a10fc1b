"""The WebSocket protocol of `/v1/stream`, without sockets: messages in, messages out.

    client: start ──► audio, audio, ... ──► finish
    server:        ready   events as they come      the last events, done

The shell hands over each message and sends what comes back. StreamError is an error message and a close code. How bytes
are spread over messages changes nothing but when events are sent. `docs/reference/server.md` describes the messages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from headsync.audio import SAMPLE_RATE
from headsync.config import HOTWORD_BOOST
from headsync.errors import ConfigError, nearest
from headsync.events import Event
from headsync.recipe import build
from headsync.server.hearing import Format, Hearing, Session
from headsync.server.limits import Limits
from headsync.server.trouble import NORMAL, StreamError, no_model
from headsync.server.wishes import Hotwords, Wishes

VERSION = 1

PROGRESS_SECONDS = 0.5  # of sound between two messages about progress

OpenSession: TypeAlias = Callable[[Wishes], Session]


class Reply(NamedTuple):
    """What to send, and the code to close the connection with afterwards, if it is to be closed."""

    messages: tuple[dict[str, Any], ...] = ()
    close: int | None = None
    events: tuple[Event, ...] = ()  # behind the messages


@dataclass(frozen=True)
class Start:
    """The first message. What is null or left out is as given here, and the search as the server has it."""

    version: int = VERSION
    sample_rate: int = SAMPLE_RATE
    format: Format = "pcm16"
    model: str = ""  # the first
    attention: bool = False  # whether to tell where the heads looked
    progress: bool = False  # whether to tell how far it has come


FIELDS = {*Start.__annotations__, "settings", "hotwords"}  # all that a start may have, beside its type


class Stream:
    """One connection."""

    name = "stream"

    def __init__(self, models: Sequence[str], open_session: OpenSession, limits: Limits) -> None:
        self._models, self._open, self._limits = models, open_session, limits
        self._told_seconds = math.inf  # of sound, when progress is to be told next
        self.hearing: Hearing | None = None

    def receive(self, message: str | bytes) -> Reply:
        """One message of the client."""
        try:
            if isinstance(message, bytes):
                return self._audio(message)
            kind, rest = _parse(message)
            if kind == "start":
                return self._start(rest)
            if kind == "finish":
                return self._finish()
        except StreamError as trouble:
            return self.end(trouble)
        return self.end(
            StreamError("message", f'A message of type "{kind}" is not known; send start, audio or finish.')
        )

    def end(self, trouble: StreamError) -> Reply:
        """The stream has to end: what was heard so far, and why it is no more."""
        events: list[Event] = []
        if self.hearing is not None and trouble.code in ("too-long", "idle"):
            events = self.hearing.finish()
        messages = *(event.to_dict() for event in events), trouble.to_dict()
        return Reply(messages, trouble.close, tuple(events))

    def _start(self, fields: dict[str, Any]) -> Reply:
        if self.hearing is not None:
            raise StreamError(
                "message", "This stream has been started before; open another connection for another stream."
            )
        start, settings, hotwords = _read_start(fields, self._limits)
        if start.version != VERSION:
            raise StreamError("version", f"Version {start.version} of the protocol is not known here; send {VERSION}.")
        if start.model and start.model not in self._models:
            raise no_model(start.model, self._models)
        model = start.model or self._models[0]
        try:
            session = self._open(Wishes(model, settings, hotwords, start.attention))
        except ConfigError as error:
            raise StreamError("setting", str(error)) from None
        self.hearing = Hearing(session, start.sample_rate, start.format, self._limits.stream_seconds)
        if start.progress:
            self._told_seconds = PROGRESS_SECONDS
        return Reply(({"type": "ready", "version": VERSION, "model": model, "limits": self._limits.told()},))

    def _audio(self, data: bytes) -> Reply:
        hearing = self._started()
        events = hearing.push(data)
        messages = tuple(event.to_dict() for event in events)
        if trouble := hearing.too_long:
            rest, close, last = self.end(trouble)
            return Reply((*messages, *rest), close, (*events, *last))
        if hearing.audio_seconds >= self._told_seconds:
            self._told_seconds = hearing.audio_seconds + PROGRESS_SECONDS
            messages = *messages, {"type": "progress", **_seconds(hearing)}
        return Reply(messages, None, tuple(events))

    def _finish(self) -> Reply:
        hearing = self._started()
        events = hearing.finish()
        done = {"type": "done", **_seconds(hearing)}
        return Reply((*(event.to_dict() for event in events), done), NORMAL, tuple(events))

    def _started(self) -> Hearing:
        if self.hearing is None:
            raise StreamError(
                "message", 'The first message must be {"type": "start"}; send it before audio and finish.'
            )
        return self.hearing


def _seconds(hearing: Hearing) -> dict[str, float]:
    """How much was heard, and how long that took."""
    seconds = {"audio_seconds": hearing.audio_seconds, "computing_seconds": hearing.computing_seconds}
    return {name: round(value, 3) for name, value in seconds.items()}


def read_object(message: str) -> dict[str, Any]:
    """The JSON object that a text message is."""
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError):
        raise StreamError("message", "A text message is not JSON; send audio as binary messages.") from None
    if not isinstance(fields, dict):
        raise StreamError("message", "A text message must be a JSON object.")
    return fields


def _parse(message: str) -> tuple[str, dict[str, Any]]:
    fields = read_object(message)
    kind = fields.pop("type", None)
    if not isinstance(kind, str):
        raise StreamError("message", 'A message must have a type, as in {"type": "finish"}.')
    return kind, fields


def _read_start(fields: dict[str, Any], limits: Limits) -> tuple[Start, dict[str, Any], Hotwords]:
    fields = {name: value for name, value in fields.items() if value is not None}
    for name in fields:
        if name not in FIELDS:
            raise StreamError("setting", f"start: {name} is not a setting{nearest(name, FIELDS)}")
    settings, hotwords = fields.pop("settings", {}), fields.pop("hotwords", [])
    if not isinstance(settings, dict):
        raise StreamError("setting", 'start: settings must be an object, as in {"beam": 4}.')
    try:
        return build(Start, fields, "start"), settings, _read_hotwords(hotwords, limits.hotwords)
    except ConfigError as error:
        raise StreamError("setting", str(error)) from None


def _read_hotwords(given: Any, most: int) -> Hotwords:
    if not isinstance(given, list) or len(given) > most:
        raise ConfigError(f"start: hotwords must be a list of at most {most} phrases")
    return [_read_hotword(one) for one in given]


def _read_hotword(given: Any) -> tuple[str, float]:
    if isinstance(given, str):
        return given, HOTWORD_BOOST
    if isinstance(given, dict) and given.keys() <= {"phrase", "boost"}:
        phrase, boost = given.get("phrase"), given.get("boost", HOTWORD_BOOST)
        if isinstance(phrase, str) and type(boost) in (int, float):
            return phrase, float(boost)
    raise ConfigError('start: a hotword is a phrase, or {"phrase": "...", "boost": 2.0}')
