"""The configuration of a Realtime transcription session: what `session.update` may set, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headsync.config import HOTWORD_BOOST
from headsync.server.errors import require
from headsync.server.session_options import SessionOptions

SAMPLE_RATE = 24_000
MOST_SILENCE_MS = 86_400_000  # a day


@dataclass(frozen=True)
class RealtimeConfig:
    """The session as the client configured it."""

    model: str = ""
    language: str | None = None
    keywords: tuple[str, ...] = ()
    sample_rate: int = SAMPLE_RATE
    server_vad: bool = True
    silence_ms: int | None = None  # None: as stored with the model

    def updated(self, session: Any) -> RealtimeConfig:
        """With the fields of a `session.update`; fields that are not mentioned keep their values."""
        require(isinstance(session, dict) and session.get("type") == "transcription", 'type must be "transcription"')
        require(not session.get("include"), "include: log probabilities are not available; leave it empty")
        given = _object(_object(session, "audio"), "input")
        require(given.get("noise_reduction") is None, "audio.input.noise_reduction is not supported; send null")
        config = replace(self, **_read_format(given), **_read_transcription(_object(given, "transcription")))
        return replace(config, **_read_turn_detection(given["turn_detection"])) if "turn_detection" in given else config

    @property
    def options(self) -> SessionOptions:
        settings = {} if self.silence_ms is None else {"pause_seconds": self.silence_ms / 1000}
        return SessionOptions(self.model, settings, [(phrase, HOTWORD_BOOST) for phrase in self.keywords])

    def to_dict(self) -> dict[str, Any]:
        vad = {"type": "server_vad", "silence_duration_ms": self.silence_ms} if self.server_vad else None
        transcription = {"model": self.model, "language": self.language, "keywords": list(self.keywords)}
        pcm = {"type": "audio/pcm", "rate": self.sample_rate}
        audio = {"input": {"format": pcm, "transcription": transcription, "turn_detection": vad}}
        return {"type": "transcription", "object": "realtime.transcription_session", "audio": audio, "include": []}


def _object(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    require(value is None or isinstance(value, dict), f"{name} must be an object")
    return value or {}


def _read_format(given: dict[str, Any]) -> dict[str, Any]:
    audio_format = _object(given, "format")
    require(audio_format.get("type", "audio/pcm") == "audio/pcm", 'audio.input.format.type must be "audio/pcm"')
    rate = audio_format.get("rate") or SAMPLE_RATE
    require(type(rate) is int, "audio.input.format.rate must be an integer")
    return {"sample_rate": rate} if audio_format else {}


def _read_transcription(given: dict[str, Any]) -> dict[str, Any]:
    fields = {name: given[name] for name in ("model", "language", "keywords") if given.get(name) is not None}
    for name in ("model", "language"):
        require(isinstance(fields.get(name, ""), str), f"audio.input.transcription.{name} must be a string")
    keywords = fields.get("keywords", [])
    valid = isinstance(keywords, list) and all(isinstance(keyword, str) for keyword in keywords)
    require(valid, "audio.input.transcription.keywords must be a list of strings")
    return {**fields, **({"keywords": tuple(keywords)} if "keywords" in fields else {})}


def _read_turn_detection(given: Any) -> dict[str, Any]:
    if given is None:
        return {"server_vad": False, "silence_ms": None}
    valid = isinstance(given, dict) and given.get("type") == "server_vad"
    require(valid, 'audio.input.turn_detection must be null or of type "server_vad"')
    silence = given.get("silence_duration_ms")
    valid = silence is None or (type(silence) is int and abs(silence) <= MOST_SILENCE_MS)
    require(valid, f"turn_detection.silence_duration_ms must be an integer up to {MOST_SILENCE_MS}")
    return {"server_vad": True, "silence_ms": silence}
