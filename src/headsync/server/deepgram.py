"""Deepgram's live API (`/v1/listen`), the part that its SDK needs, without sockets: messages in, messages out.

The query configures the stream. Binary messages are 16-bit audio. `Finalize` ends the utterance and continues,
`CloseStream` ends the stream, `KeepAlive` only shows that the client is there. `Results` with `is_final` are final;
with `interim_results=true`, others precede them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import headsync
from headsync.config import HOTWORD_BOOST
from headsync.events import Event, Final, Partial, Word
from headsync.server.base_stream import BaseStream, Messages, OpenSession, Reply, SessionOptions, read_object
from headsync.server.errors import NORMAL, StreamError, require
from headsync.server.limits import Limits
from headsync.server.pcm_stream import PcmStream

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
            require(given.get(name, "false") == "false", f"{name} is not supported")
        require(given.get("encoding") == "linear16", "encoding must be linear16")
        require(given.get("channels", "1") == "1", "channels must be 1")
        rate = _integer(given.get("sample_rate", ""), "sample_rate must be an integer, for example 16000")
        phrases = [_hotword(value) for name, value in query if name in ("keyterm", "keywords")]
        options = SessionOptions(given.get("model", ""), _settings(given.get("endpointing", "true")), phrases)
        interim, vad = (given.get(name) == "true" for name in ("interim_results", "vad_events"))
        return cls(rate, options, interim, vad, "utterance_end_ms" in given)


def _integer(text: str, message: str) -> int:
    require(text.isascii() and text.isdigit() and len(text) < 10, message)
    return int(text)


def _settings(endpointing: str) -> dict[str, Any]:
    if endpointing == "true":
        return {}  # as stored with the model
    return {"pause_seconds": _integer(endpointing, "endpointing must be true or milliseconds") / 1000}


def _hotword(value: str) -> tuple[str, float]:
    """A phrase, or `PHRASE:BOOST`."""
    phrase, _, boost = value.rpartition(":")
    try:
        return (phrase, float(boost)) if phrase else (value, HOTWORD_BOOST)
    except ValueError:
        return value, HOTWORD_BOOST


class DeepgramStream(BaseStream[str | bytes]):
    name = "deepgram"

    def __init__(
        self, query: Sequence[tuple[str, str]], open_session: OpenSession, limits: Limits, request_id: str
    ) -> None:
        super().__init__(open_session, limits)
        self._query, self._request_id = query, request_id
        self._listen: ListenOptions | None = None
        self._end_seconds = 0.0  # of the last final result
        self._speaking = False  # the current utterance has words

    def _greet(self) -> Reply:
        self._listen = ListenOptions.read(self._query)
        self._start()
        return Reply()

    def _answer(self, message: str | bytes) -> Reply:
        assert self.audio is not None  # opened with the connection
        if isinstance(message, bytes):
            return self._push(self.audio, message) if message else self._close(self.audio)  # the older CloseStream
        kind = read_object(message).get("type")
        if kind == "KeepAlive":
            return Reply()
        if kind == "Finalize":
            return self._finalize(self.audio)
        if kind == "CloseStream":
            return self._close(self.audio)
        raise StreamError("message", f'The message type "{kind}" is not supported.')

    def _error(self, error: StreamError) -> dict[str, Any]:
        text = str(error)
        return {"type": "Error", "description": text, "message": text, "variant": error.code, **error.retry}

    def _start(self) -> None:
        assert self._listen is not None
        self.audio = self._open_audio(self._listen.options, self._listen.sample_rate)

    def _finalize(self, audio: PcmStream) -> Reply:
        events = audio.finish()
        messages = self._messages(events)
        for message in messages:
            if message["type"] == "Results":
                message["from_finalize"] = True
        self._leave_audio()
        self._start()
        return Reply(tuple(messages), None, tuple(events))

    def _close(self, audio: PcmStream) -> Reply:
        events = audio.finish()
        return Reply((*self._messages(events), self._metadata()), NORMAL, tuple(events))

    def _messages(self, events: Sequence[Event]) -> Messages:
        messages: Messages = []
        listen = self._listen
        for event in events:
            if listen is None or not isinstance(event, Partial | Final):
                continue
            if event.words and not self._speaking and listen.vad_events:
                started, _ = self._seconds(event.words[0])
                messages.append({"type": "SpeechStarted", "channel": CHANNEL, "timestamp": started})
            self._speaking = bool(event.words)
            if isinstance(event, Final) or listen.interim_results:
                messages.append(self._result(event))
            if isinstance(event, Final):
                self._end_seconds, self._speaking = self._before.audio_seconds + event.time_seconds, False
                if event.words and listen.utterance_end:
                    _, ended = self._seconds(event.words[-1])
                    messages.append({"type": "UtteranceEnd", "channel": CHANNEL, "last_word_end": ended})
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
        start, end = self._seconds(word)
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
