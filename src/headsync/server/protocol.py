"""The WebSocket protocol of `/v1/stream`, without sockets: messages in, messages out.

    client: start ──► audio, audio, ... ──► finish
    server:        ready   events as they occur     the last events, done

The WebSocket handler passes each message in and sends the reply. How the client cuts audio into messages changes only
when events are sent. `docs/reference/server.md` documents the messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headsync.config import HOTWORD_BOOST
from headsync.errors import ConfigError, nearest
from headsync.events import Event
from headsync.frontend.audio import SAMPLE_RATE
from headsync.recipe import build, to_float
from headsync.server.base_stream import (
    BaseStream,
    BoostedPhrases,
    Messages,
    OpenSession,
    Reply,
    SessionOptions,
    read_object,
)
from headsync.server.errors import NORMAL, StreamError, unknown_model
from headsync.server.limits import Limits
from headsync.server.pcm_stream import PcmStream, SampleFormat

VERSION = 1

BUDGET = {  # the query's parameters, with examples
    "lookahead_ms": "320", "threshold": "1.0", "pause_seconds": "0.8", "centre_ms": "384", "right_ms": "384"
}  # fmt: skip
PROGRESS_SECONDS = 0.5  # audio between two progress messages


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


class NativeStream(BaseStream[str | bytes]):
    name = "stream"

    def __init__(
        self,
        models: Sequence[str],
        open_session: OpenSession,
        limits: Limits,
        aliases: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(open_session, limits)
        self._models, self._aliases, self._query = models, aliases or {}, query or {}
        self._budget: dict[str, float] = {}  # settings of the query
        self._next_progress = math.inf  # seconds of audio

    def _greet(self) -> Reply:
        self._budget = read_budget(self._query)
        return Reply()

    def _answer(self, message: str | bytes) -> Reply:
        if isinstance(message, bytes):
            return self._push_audio(message)
        fields = read_object(message)
        kind = fields.pop("type", None)
        if kind == "start":
            return self._start(fields)
        if kind == "finish":
            return self._finish()
        if not isinstance(kind, str):
            raise StreamError("message", 'The message has no type; send, for example, {"type": "finish"}.')
        raise StreamError("message", f'The message type "{kind}" is unknown; send "start" or "finish".')

    def _messages(self, events: Sequence[Event]) -> Messages:
        return [event.to_dict() for event in events]

    def _error(self, error: StreamError) -> dict[str, Any]:
        return error.to_dict()

    def _start(self, fields: dict[str, Any]) -> Reply:
        if self.audio is not None:
            raise StreamError("message", "This stream has already started; open another connection for another stream.")
        start, chosen = _read_start(fields)
        if start.version != VERSION:
            raise StreamError("version", f"Protocol version {start.version} is unknown; send version {VERSION}.")
        model = self._aliases.get(start.model, start.model) or self._models[0]
        if model not in self._models:
            raise unknown_model(model, self._models)
        chosen = replace(chosen, model=model, settings={**self._budget, **chosen.settings})
        self.audio = self._open_audio(chosen, start.sample_rate, start.format)
        if start.progress:
            self._next_progress = PROGRESS_SECONDS
        return Reply(({"type": "ready", "version": VERSION, "model": model, "limits": self._limits.for_clients()},))

    def _push_audio(self, data: bytes) -> Reply:
        audio = self._started()
        reply = self._push(audio, data)
        if reply.close_code is None and audio.audio_seconds >= self._next_progress:
            self._next_progress = audio.audio_seconds + PROGRESS_SECONDS
            reply = reply._replace(messages=(*reply.messages, {"type": "progress", **_seconds(audio)}))
        return reply

    def _finish(self) -> Reply:
        audio = self._started()
        events = audio.finish()
        done = {"type": "done", **_seconds(audio)}
        return Reply((*self._messages(events), done), NORMAL, tuple(events))

    def _started(self) -> PcmStream:
        if self.audio is None:
            raise StreamError("message", 'The stream has not started; send {"type": "start"} before audio and finish.')
        return self.audio


def _seconds(audio: PcmStream) -> dict[str, float]:
    seconds = {"audio_seconds": audio.audio_seconds, "computing_seconds": audio.computing_seconds}
    return {name: round(value, 3) for name, value in seconds.items()}


def read_budget(query: Mapping[str, str]) -> dict[str, float]:
    """The delay budget in the query of a connection."""
    budget = {}
    for name, text in query.items():
        if name == "token":
            continue
        if name not in BUDGET:
            raise StreamError("setting", f"query: unknown parameter {name}{nearest(name, BUDGET)}")
        try:
            budget[name] = float(text)
        except ValueError:
            budget[name] = math.nan
        if not 0 < budget[name] < math.inf:
            raise StreamError(
                "setting", f'query: {name} = "{text}" must be a number above 0, for example {BUDGET[name]}'
            )
    return budget


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
