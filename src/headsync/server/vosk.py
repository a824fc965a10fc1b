"""The WebSocket protocol of vosk-server, without sockets, so that programs written for it work unchanged.

A client may send `{"config": {...}}` first, then 16-bit sound, then `{"eof": 1}`. Each message but the config gets
exactly one reply: what is recognised so far (`partial`), or an utterance that has ended (`text`, with its words as
`result`). `{"reset": 1}` ends the utterance and goes on. Of the config, `sample_rate`, `words` and `max_alternatives`
are heeded until sound comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headsync.errors import ConfigError
from headsync.events import Event, Final, Partial, Word
from headsync.server.hearing import Hearing
from headsync.server.limits import Limits
from headsync.server.protocol import OpenSession, Reply, read_object
from headsync.server.trouble import NORMAL, StreamError
from headsync.server.wishes import Wishes


@dataclass(frozen=True)
class VoskConfig:
    """The settings of a connection; the defaults are those of vosk-server."""

    sample_rate: int = 8000
    words: bool = True
    max_alternatives: int = 0

    def changed(self, fields: Any) -> VoskConfig:
        """With what a config message says; what is not known here is for others."""
        if not isinstance(fields, dict):
            raise StreamError("message", 'The config must be an object, as in {"config": {"sample_rate": 16000}}.')
        try:
            return replace(
                self,
                sample_rate=int(float(fields.get("sample_rate", self.sample_rate))),
                words=bool(fields.get("words", self.words)),
                max_alternatives=int(fields.get("max_alternatives", self.max_alternatives)),
            )
        except (TypeError, ValueError, OverflowError):
            raise StreamError("setting", "sample_rate and max_alternatives of a config must be numbers.") from None


class VoskStream:
    """One connection."""

    name = "vosk"

    def __init__(self, open_session: OpenSession, limits: Limits) -> None:
        self._open, self._limits = open_session, limits
        self._config = VoskConfig()
        self._partial = ""
        self._before_seconds = 0.0  # sound before the last reset
        self.hearing: Hearing | None = None

    def receive(self, message: str | bytes) -> Reply:
        """One message of the client."""
        try:
            if isinstance(message, bytes):
                return self._audio(message)
            fields = read_object(message)
            if "config" in fields:
                self._config = self._config.changed(fields["config"]) if self.hearing is None else self._config
                return Reply()
            if fields.get("eof"):
                return self._final(self._heard().finish(), NORMAL)
            if fields.get("reset"):
                return self._reset()
        except StreamError as trouble:
            return self.end(trouble)
        return self.end(StreamError("message", "A text message is neither config nor eof nor reset."))

    def end(self, trouble: StreamError) -> Reply:
        """The stream has to end; this protocol has no message for why."""
        return Reply((), trouble.close)

    def _audio(self, data: bytes) -> Reply:
        hearing = self._heard()
        events = hearing.push(data)
        for event in events:
            if isinstance(event, Partial):
                self._partial = event.text
            elif isinstance(event, Final):
                self._partial = ""
        if hearing.too_long:
            return self._final([*events, *hearing.finish()], hearing.too_long.close)
        if any(isinstance(event, Final) for event in events):
            return self._final(events)
        return Reply(({"partial": self._partial},), None, tuple(events))

    def _reset(self) -> Reply:
        hearing = self._heard()
        reply = self._final(hearing.finish())
        self._before_seconds += hearing.audio_seconds
        self.hearing, self._partial = self._begin(), ""
        return reply

    def _final(self, events: Sequence[Event], close: int | None = None) -> Reply:
        finals = [event for event in events if isinstance(event, Final)]
        return Reply((self._result(finals),), close, tuple(events))

    def _result(self, finals: Sequence[Final]) -> dict[str, Any]:
        """The utterances that ended, most often one, as one reply."""
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
        start, end = (round(self._before_seconds + at, 3) for at in (word.start_seconds, word.end_seconds))
        return {"end": end, "start": start, "word": word.text}

    def _heard(self) -> Hearing:
        if self.hearing is None:
            self.hearing = self._begin()
        return self.hearing

    def _begin(self) -> Hearing:
        settings: dict[str, Any] = {}
        if self._config.max_alternatives > 0:
            settings = {"nbest": min(self._config.max_alternatives, self._limits.beam)}
        try:
            session = self._open(Wishes(settings=settings))
        except ConfigError as error:
            raise StreamError("setting", str(error)) from None
        left = self._limits.stream_seconds - self._before_seconds
        return Hearing(session, self._config.sample_rate, "pcm16", left)
