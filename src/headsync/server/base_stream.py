"""The common part of the protocols of live streams: options, audio of one or several sessions, its limit, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from headsync._parse import parse_json
from headsync.errors import ConfigError
from headsync.events import Event, Word
from headsync.server.errors import StreamError
from headsync.server.limits import Limits
from headsync.server.pcm_stream import AudioSession, PcmStream, SampleFormat, Usage

BoostedPhrases: TypeAlias = Sequence[tuple[str, float]]  # phrases with their boosts
Messages: TypeAlias = list[dict[str, Any]]

M = TypeVar("M")  # the messages of a client


@dataclass(frozen=True)
class SessionOptions:
    """Options of one stream; the defaults are those of the server."""

    model: str = ""  # empty: the first model
    settings: Mapping[str, Any] = field(default_factory=dict)  # decoding settings
    hotwords: BoostedPhrases = ()
    attention: bool = False  # send attention events
    phrases: Sequence[str] = ()  # the only phrases; none: those of the server


OpenSession: TypeAlias = Callable[[SessionOptions], AudioSession]


class Reply(NamedTuple):
    """Messages to send, and the code to close the connection with afterwards; None keeps it open."""

    messages: tuple[dict[str, Any], ...] = ()
    close_code: int | None = None
    events: tuple[Event, ...] = ()  # the events that the messages were made from
    close_reason: str = ""  # of the WebSocket's close frame, for a protocol without error messages


class BaseStream(Generic[M]):
    """A protocol answers messages, formats events and formats errors; it may also answer the connection itself."""

    name: str

    def __init__(self, open_session: OpenSession, limits: Limits) -> None:
        self._open, self._limits = open_session, limits
        self._before = Usage()  # audio of earlier sessions of the recogniser
        self.audio: PcmStream | None = None

    def _answer(self, message: M) -> Reply:
        raise NotImplementedError

    def _messages(self, events: Sequence[Event]) -> Messages:
        raise NotImplementedError

    def _error(self, error: StreamError) -> dict[str, Any]:
        raise NotImplementedError

    def _greet(self) -> Reply:
        return Reply()

    @property
    def usage(self) -> Usage:
        return self._before.plus(self.audio)

    def opening(self) -> Reply:
        try:
            return self._greet()
        except StreamError as error:
            return self.end(error)

    def receive(self, message: M) -> Reply:
        try:
            return self._answer(message)
        except StreamError as error:
            return self.end(error)

    def end(self, error: StreamError) -> Reply:
        """The reply that ends the stream with an error; after too much audio or silence, the last events precede it."""
        events: list[Event] = []
        if self.audio is not None and error.code in ("too-long", "idle"):
            events = self.audio.finish()
        return Reply((*self._messages(events), self._error(error)), error.close_code, tuple(events))

    def _open_audio(self, options: SessionOptions, sample_rate: int, format: SampleFormat = "pcm16") -> PcmStream:
        """A new session; its audio and that of earlier ones must not exceed the limit of a stream."""
        try:
            session = self._open(options)
        except ConfigError as error:
            raise StreamError("setting", str(error)) from None
        return PcmStream(session, sample_rate, format, self._limits.stream_seconds - self._before.audio_seconds)

    def _push(self, audio: PcmStream, data: bytes) -> Reply:
        events = audio.push(data)
        messages = self._messages(events)
        if error := audio.length_error:
            last = self.end(error)
            return Reply((*messages, *last.messages), last.close_code, (*events, *last.events))
        return Reply(tuple(messages), None, tuple(events))

    def _seconds(self, word: Word) -> tuple[float, float]:
        """Start and end of a word, counted over all sessions."""
        before = self._before.audio_seconds
        return round(before + word.start_seconds, 3), round(before + word.end_seconds, 3)

    def _leave_audio(self) -> None:
        """Drop the session; its audio remains counted."""
        self._before, self.audio = self.usage, None


def read_object(message: str) -> dict[str, Any]:
    try:
        fields = parse_json(message)
    except UnicodeEncodeError:
        raise StreamError("message", "The text message escapes a lone surrogate; send valid Unicode.") from None
    except ValueError:
        raise StreamError("message", "The text message is not JSON; send audio as binary messages.") from None
    if not isinstance(fields, dict):
        raise StreamError("message", "The text message is not a JSON object.")
    return fields
