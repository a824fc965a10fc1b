"""The WebSocket protocol of vosk-server, without sockets, so that its clients work unchanged.

A client may send `{"config": {...}}` first, then 16-bit audio, then `{"eof": 1}`. Each message except the config gets
exactly one reply: the text so far (`partial`), or an utterance that has ended (`text`, with its words as `result`).
`{"reset": 1}` ends the utterance and continues the stream. A config is used until the first audio; only its fields
`sample_rate`, `words`, `max_alternatives` and `phrase_list` are read. As in Vosk, the order of the words in a phrase
list is not strict: the text consists of these words, and of [unk] for other speech if the list contains it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headsync.errors import ConfigError
from headsync.events import Event, Final, Partial, Word
from headsync.server.base_stream import BaseStream, OpenSession, Reply, SessionOptions, read_object
from headsync.server.errors import NORMAL, StreamError
from headsync.server.limits import Limits
from headsync.server.pcm_stream import PcmStream
from headsync.server.protocol import read_phrases


@dataclass(frozen=True)
class VoskConfig:
    """The config of a connection; the defaults are those of vosk-server."""

    sample_rate: int = 8000
    words: bool = True
    max_alternatives: int = 0
    phrases: tuple[str, ...] = ()  # the words of the phrase list

    def updated(self, fields: Any) -> VoskConfig:
        """With the fields of a config message; unknown fields are ignored."""
        if not isinstance(fields, dict):
            raise StreamError("message", 'config must be an object, for example {"config": {"sample_rate": 16000}}.')
        try:
            return replace(
                self,
                sample_rate=int(float(fields.get("sample_rate", self.sample_rate))),
                words=bool(fields.get("words", self.words)),
                max_alternatives=int(fields.get("max_alternatives", self.max_alternatives)),
                phrases=_read_words(fields["phrase_list"]) if "phrase_list" in fields else self.phrases,
            )
        except ConfigError as error:
            raise StreamError("setting", str(error)) from None
        except (TypeError, ValueError, OverflowError):
            raise StreamError("setting", "config: sample_rate and max_alternatives must be numbers.") from None


def _read_words(given: Any) -> tuple[str, ...]:
    """The words of a phrase list, each once; null is no list."""
    phrases = read_phrases([] if given is None else given, "config: phrase_list")
    return tuple(dict.fromkeys(word for phrase in phrases for word in phrase.split()))


class VoskStream(BaseStream[str | bytes]):
    name = "vosk"

    def __init__(self, open_session: OpenSession, limits: Limits) -> None:
        super().__init__(open_session, limits)
        self._config = VoskConfig()
        self._partial = ""

    def _answer(self, message: str | bytes) -> Reply:
        if isinstance(message, bytes):
            return self._push_audio(message)
        fields = read_object(message)
        if "config" in fields:
            if self.audio is None:
                self._config = self._config.updated(fields["config"])
            return Reply()
        if fields.get("eof"):
            return self._final(self._stream().finish(), NORMAL)
        if fields.get("reset"):
            return self._reset()
        raise StreamError("message", "The text message has none of config, eof and reset.")

    def end(self, error: StreamError) -> Reply:
        """Close the connection; the protocol has no error message, so the close frame has the code."""
        return Reply((), error.close_code, close_reason=json.dumps({"code": error.code, **error.retry}))

    def _push_audio(self, data: bytes) -> Reply:
        audio = self._stream()
        events = audio.push(data)
        for event in events:
            if isinstance(event, Partial | Final):
                self._partial = event.text if isinstance(event, Partial) else ""
        if error := audio.length_error:
            return self._final([*events, *audio.finish()], error.close_code)
        if any(isinstance(event, Final) for event in events):
            return self._final(events)
        return Reply(({"partial": self._partial},), None, tuple(events))

    def _reset(self) -> Reply:
        reply = self._final(self._stream().finish())
        self._leave_audio()
        self.audio, self._partial = self._open_stream(), ""
        return reply

    def _final(self, events: Sequence[Event], close_code: int | None = None) -> Reply:
        finals = [event for event in events if isinstance(event, Final)]
        return Reply((self._result(finals),), close_code, tuple(events))

    def _result(self, finals: Sequence[Final]) -> dict[str, Any]:
        """The utterances that ended in one message, usually one, as one result."""
        if self._config.max_alternatives > 0:
            return {"alternatives": self._alternatives(finals)}
        text = " ".join(final.text for final in finals if final.text)
        words = [{"conf": round(word.confidence, 6), **self._times(word)} for final in finals for word in final.words]
        return {"result": words, "text": text} if self._config.words and words else {"text": text}

    def _alternatives(self, finals: Sequence[Final]) -> list[dict[str, Any]]:
        text = " ".join(final.text for final in finals if final.text)
        best: dict[str, Any] = {"text": text, "confidence": 1.0}
        words = [self._times(word) for final in finals for word in final.words]
        if self._config.words and words:
            best = {"result": words, **best}
        others = finals[0].alternatives if len(finals) == 1 else ()
        return [best, *({"text": other.text, "confidence": math.exp(-other.behind)} for other in others)]

    def _times(self, word: Word) -> dict[str, Any]:
        start, end = self._seconds(word)
        return {"end": end, "start": start, "word": word.text}

    def _stream(self) -> PcmStream:
        if self.audio is None:
            self.audio = self._open_stream()
        return self.audio

    def _open_stream(self) -> PcmStream:
        settings: dict[str, Any] = {}
        if self._config.max_alternatives > 0:
            settings = {"nbest": min(self._config.max_alternatives, self._limits.beam)}
        options = SessionOptions(settings=settings, phrases=self._config.phrases)
        return self._open_audio(options, self._config.sample_rate)
