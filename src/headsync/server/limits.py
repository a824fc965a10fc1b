"""What one server process grants; everything that a client could make grow has its bound here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one process."""

    streams: int = 100  # open at a time, transcriptions of recordings among them
    stream_seconds: float = 4 * 3600.0  # of sound in one stream or recording
    message_bytes: int = MEBIBYTE
    request_bytes: int = 100 * MEBIBYTE
    idle_seconds: float = 30.0  # without a word from a client, or without its taking what it is sent
    drain_seconds: float = 60.0  # for open streams to finish once the server has to leave
    beam: int = 20  # widest search that a stream may ask for
    hotwords: int = 100  # most phrases that a stream may name

    def told(self) -> dict[str, Any]:
        """Those that a client of a stream has to keep."""
        names = ("stream_seconds", "message_bytes", "idle_seconds", "beam", "hotwords")
        return {name: getattr(self, name) for name in names}
