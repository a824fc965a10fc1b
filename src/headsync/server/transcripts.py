"""The documents of `/v1/audio/transcriptions`, in the form of OpenAI's API: pure functions of what was recognised."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from headsync.events import Event, Final, Partial, Word

ResponseFormat: TypeAlias = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity: TypeAlias = Literal["word", "segment"]

UNKNOWN_LANGUAGE = "unknown"  # where a client does not say it; the field must not be empty


class Heard(NamedTuple):
    """A whole recording."""

    finals: Sequence[Final]
    audio_seconds: float

    @property
    def text(self) -> str:
        return " ".join(final.text for final in self.finals if final.text)

    @property
    def usage(self) -> dict[str, Any]:
        return {"type": "duration", "seconds": math.ceil(self.audio_seconds)}


class Said(NamedTuple):
    """How far a growing transcript has been sent."""

    text: str = ""
    words: int = 0  # of the utterance that is not over yet


def grown(said: Said, event: Event) -> tuple[str, Said]:
    """What an event adds that stays: the piece to send, and how far that is."""
    if not isinstance(event, Partial | Final):
        return "", said
    over = isinstance(event, Final)
    words = event.words if isinstance(event, Final) else event.words[: event.committed_words]
    new = " ".join(word.text for word in words[said.words :])
    piece = f" {new}" if new and said.text else new
    return piece, Said(said.text + piece, 0 if over else max(said.words, len(words)))


def plain(heard: Heard) -> dict[str, Any]:
    """`json`: the text."""
    return {"text": heard.text, "usage": heard.usage}


def verbose(heard: Heard, language: str, granularities: Collection[Granularity]) -> dict[str, Any]:
    """`verbose_json`: also when what was said."""
    document = {
        "task": "transcribe",
        "language": language or UNKNOWN_LANGUAGE,
        "duration": round(heard.audio_seconds, 3),
        "text": heard.text,
        "usage": heard.usage,
    }
    if "word" in granularities:
        document["words"] = [_word(word) for final in heard.finals for word in final.words]
    if "segment" in granularities or not granularities:
        document["segments"] = [_segment(number, final) for number, final in enumerate(_spoken(heard.finals))]
    return document


def server_sent(event: dict[str, Any]) -> str:
    """An event as a server sends it in a stream."""
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def delta(piece: str) -> dict[str, Any]:
    return {"type": "transcript.text.delta", "delta": piece}


def done(heard: Heard) -> dict[str, Any]:
    return {"type": "transcript.text.done", "text": heard.text, "usage": heard.usage}


def _spoken(finals: Sequence[Final]) -> list[Final]:
    return [final for final in finals if final.words]


def _word(word: Word) -> dict[str, Any]:
    return {"word": word.text, "start": round(word.start_seconds, 3), "end": round(word.end_seconds, 3)}


def _segment(number: int, final: Final) -> dict[str, Any]:
    """An utterance; fields that mean nothing here are there for programs that expect them."""
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
