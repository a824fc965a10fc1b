"""Deepgram's live API (`/v1/listen`), the part that its SDK needs, without sockets: messages in, messages out.

The query configures the stream. Binary messages are 16-bit audio. `Finalize` ends the utterance and continues,
`CloseStream` ends the stream, `KeepAlive` only shows that the client is there. `Results` with `is_final` are final;
with `interim_results=true`, others precede them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import headsync
from headsync.config import HOTWORD_BOOST
from headsync.errors import ConfigError
from headsync.events import Event, Final, Partial, Word
from headsync.server.errors import NORMAL, StreamError
from headsync.server.limits import Limits
from headsync.server.pcm_stream import PcmStream, Usage
from headsync.server.protocol import OpenSession, Reply, read_object
from headsync.server.session_options import SessionOptions

# Parameters that would change the results and are not available; "false" is accepted.
REFUSED = ("callback", "detect_entities", "diarize", "diarize_model", "multichannel", "redact", "replace", "search")
CHANNEL = [0, 1]  # the first channel of one


@dataclass(frozen=True)
class ListenOptions:
    """The query of a connection."""

    sample_rate: int
    options: SessionOptions
    interim_results: bool = False
    vad_events: bool = False
    utterance_end: bool = False

    @classmethod
    def read(cls, query: Sequence[tuple[str, str]]) -> ListenOptions:
        """Parse a query; parameters that are not mentioned here are ignored."""
        given = dict(query)
        for name in REFUSED:
            _require(given.get(name, "false") == "false", f"{name} is not supported")
        _require(given.get("encoding") == "linear16", "encoding must be linear16")
        _require(given.get("channels", "1") == "1", "channels must be 1")
        _require(given.get("sample_rate", "").isdigit(), "sample_rate must be an integer, for example 16000")
        phrases = [_hotword(value) for name, value in query if name in ("keyterm", "keywords")]
        options = SessionOptions(given.get("model", ""), _settings(given.get("endpointing", "true")), phrases)
        interim, vad = (given.get(name) == "true" for name in ("interim_results", "vad_events"))
        return cls(int(given["sample_rate"]), options, interim, vad, "utterance_end_ms" in given)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise StreamError("setting", f"{message}.")


def _settings(endpointing: str) -> dict[str, Any]:
    if endpointing == "true":
        return {}  # as stored with the model
    _require(endpointing.isdigit(), "endpointing must be true or milliseconds")
    return {"pause_seconds": int(endpointing) / 1000}


def _hotword(value: str) -> tuple[str, float]:
    """A phrase, or `PHRASE:BOOST`."""
    phrase, _, boost = value.rpartition(":")
    try:
        return (phrase, float(boost)) if phrase else (value, HOTWORD_BOOST)
    except ValueError:
        return value, HOTWORD_BOOST


class DeepgramStream:
    """One connection to `/v1/listen`."""

    name = "deepgram"

    def __init__(
        self, query: Sequence[tuple[str, str]], open_session: OpenSession, limits: Limits, request_id: str
    ) -> None:
        self._query, self._open, self._limits, self._request_id = query, open_session, limits, request_id
        self._listen: ListenOptions | None = None
        self._before = Usage()  # audio before the last Finalize
        self._end_seconds = 0.0  # of the last final result
        self._speaking = False  # the current utterance has words
        self.audio: PcmStream | None = None

    @property
    def usage(self) -> Usage:
        return self._before.plus(self.audio)

    def opening(self) -> Reply:
        """Check the query."""
        try:
            self._listen = ListenOptions.read(self._query)
            self.audio = self._open_audio(self._listen)
        except StreamError as error:
            return self.end(error)
        return Reply()

    def receive(self, message: str | bytes) -> Reply:
        """The reply to one message."""
        try:
            if isinstance(message, bytes):
                return self._push(message) if message else self._close()  # an empty message is the older CloseStream
            kind = read_object(message).get("type")
            if kind == "KeepAlive":
                return Reply()
            if kind == "Finalize":
                return self._finalize()
            if kind == "CloseStream":
                return self._close()
            raise StreamError("message", f'The message type "{kind}" is not supported.')
        except StreamError as error:
            return self.end(error)

    def end(self, error: StreamError) -> Reply:
        """The reply that ends the stream; after too much audio or silence, the last results precede the error."""
        events: list[Event] = []
        if self.audio is not None and error.code in ("too-long", "idle"):
            events = self.audio.finish()
        message = {"type": "Error", "description": str(error), "message": str(error), "variant": error.code}
        return Reply((*self._messages(events), message | error.retry), error.close_code, tuple(events))

    def _push(self, data: bytes) -> Reply:
        audio = self._audio()
        events = audio.push(data)
        messages = self._messages(events)
        if error := audio.length_error:
            last = self.end(error)
            return Reply((*messages, *last.messages), last.close_code, (*events, *last.events))
        return Reply(tuple(messages), None, tuple(events))

    def _finalize(self) -> Reply:
        events = self._audio().finish()
        messages = self._messages(events, {"from_finalize": True})
        self._before, self.audio = self.usage, None
        assert self._listen is not None
        self.audio = self._open_audio(self._listen)
        return Reply(tuple(messages), None, tuple(events))

    def _close(self) -> Reply:
        events = self._audio().finish()
        return Reply((*self._messages(events), self._metadata()), NORMAL, tuple(events))

    def _open_audio(self, listen: ListenOptions) -> PcmStream:
        try:
            session = self._open(listen.options)
        except ConfigError as error:
            raise StreamError("setting", str(error)) from None
        max_seconds = self._limits.stream_seconds - self._before.audio_seconds
        return PcmStream(session, listen.sample_rate, "pcm16", max_seconds)

    def _audio(self) -> PcmStream:
        assert self.audio is not None  # opened with the connection
        return self.audio

    def _messages(self, events: Sequence[Event], extra: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        listen = self._listen
        for event in events:
            if listen is None or not isinstance(event, Partial | Final):
                continue
            if event.words and not self._speaking and listen.vad_events:
                started = self._before.audio_seconds + event.words[0].start_seconds
                messages.append({"type": "SpeechStarted", "channel": CHANNEL, "timestamp": round(started, 3)})
            self._speaking = bool(event.words)
            if isinstance(event, Final) or listen.interim_results:
                messages.append({**self._result(event), **(extra or {})})
            if isinstance(event, Final):
                self._end_seconds, self._speaking = self._before.audio_seconds + event.time_seconds, False
                if event.words and listen.utterance_end:
                    ended = self._before.audio_seconds + event.words[-1].end_seconds
                    messages.append({"type": "UtteranceEnd", "channel": CHANNEL, "last_word_end": round(ended, 3)})
        return messages

    def _result(self, event: Partial | Final) -> dict[str, Any]:
        words = [self._word(word) for word in event.words]
        confidence = sum(word["confidence"] for word in words) / len(words) if words else 0.0
        alternative = {"transcript": event.text, "confidence": round(confidence, 6), "words": words}
        duration = self._before.audio_seconds + event.time_seconds - self._end_seconds
        final = isinstance(event, Final)
        return {
            "type": "Results",
            "channel_index": CHANNEL,
            "start": round(self._end_seconds, 3),
            "duration": round(duration, 3),
            "is_final": final,
            "speech_final": final,
            "channel": {"alternatives": [alternative]},
            "metadata": {"request_id": self._request_id, "model_info": self._model_info(), "model_uuid": ""},
        }

    def _word(self, word: Word) -> dict[str, Any]:
        start, end = (round(self._before.audio_seconds + at, 3) for at in (word.start_seconds, word.end_seconds))
        confidence = round(word.confidence, 6)
        return {"word": word.text, "start": start, "end": end, "confidence": confidence, "punctuated_word": word.text}

    def _model_info(self) -> dict[str, str]:
        model = self._listen.options.model if self._listen else ""
        return {"name": model, "version": headsync.__version__, "arch": "headsync"}

    def _metadata(self) -> dict[str, Any]:
        return {
            "type": "Metadata",
            "transaction_key": "deprecated",
            "request_id": self._request_id,
            "sha256": hashlib.sha256(self._request_id.encode()).hexdigest(),
            "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "duration": round(self.usage.audio_seconds, 3),
            "channels": 1,
        }
