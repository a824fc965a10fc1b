"""Responses of OpenAI's transcription API, as pure functions of what was recognised.

`openai_api` has the routes; this module needs no web framework.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from headsync.events import Event, Final, Partial, Word

ResponseFormat: TypeAlias = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity: TypeAlias = Literal["word", "segment"]

UNKNOWN_LANGUAGE = "unknown"  # if the client does not send it; the field must not be empty


class Transcription(NamedTuple):
    finals: Sequence[Final]
    audio_seconds: float

    @property
    def text(self) -> str:
        return " ".join(final.text for final in self.finals if final.text)

    @property
    def usage(self) -> dict[str, Any]:
        return {"type": "duration", "seconds": math.ceil(self.audio_seconds)}


class SentText(NamedTuple):
    """How much of a growing transcript has been sent."""

    text: str = ""
    words: int = 0  # of the current utterance


def next_delta(sent: SentText, event: Event) -> tuple[str, SentText]:
    """The committed text that an event adds, and what has been sent after it."""
    if not isinstance(event, Partial | Final):
        return "", sent
    words = event.words if isinstance(event, Final) else event.words[: event.committed_words]
    new = " ".join(word.text for word in words[sent.words :])
    text = f" {new}" if new and sent.text else new
    count = 0 if isinstance(event, Final) else max(sent.words, len(words))
    return text, SentText(sent.text + text, count)


def plain_json(result: Transcription) -> dict[str, Any]:
    """`response_format=json`: the text."""
    return {"text": result.text, "usage": result.usage}


def verbose_json(result: Transcription, language: str, granularities: Collection[Granularity]) -> dict[str, Any]:
    """`response_format=verbose_json`: the text with times of words, segments or both."""
    response = {
        "task": "transcribe",
        "language": language or UNKNOWN_LANGUAGE,
        "duration": round(result.audio_seconds, 3),
        "text": result.text,
        "usage": result.usage,
    }
    if "word" in granularities:
        response["words"] = [_word(word) for final in result.finals for word in final.words]
    if "segment" in granularities or not granularities:
        spoken = (final for final in result.finals if final.words)
        response["segments"] = [_segment(number, final) for number, final in enumerate(spoken)]
    return response


def server_sent_event(event: dict[str, Any]) -> str:
    """An event of a `text/event-stream` response."""
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def _word(word: Word) -> dict[str, Any]:
    return {"word": word.text, "start": round(word.start_seconds, 3), "end": round(word.end_seconds, 3)}


def _segment(number: int, final: Final) -> dict[str, Any]:
    """An utterance. `seek`, `tokens`, `temperature` and `no_speech_prob` are constants that clients require."""
    text = final.text.encode()
    confidences = [max(word.confidence, 1e-9) for word in final.words]
    return {
        "id": number,
        "seek": 0,
        "start": round(final.words[0].start_seconds, 3),
        "end": round(final.words[-1].end_seconds, 3),
        "text": final.text,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": round(sum(map(math.log, confidences)) / len(confidences), 4),
        "compression_ratio": round(len(text) / len(zlib.compress(text)), 4),
        "no_speech_prob": 0.0,
    }
