"""Bounds of one server process: every quantity that a client can make grow has a limit here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headsync.server.errors import StreamError

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one process."""

    streams: int = 100  # open at the same time, including transcriptions of recordings
    stream_seconds: float = 4 * 3600.0  # audio in one stream or recording
    message_bytes: int = MEBIBYTE  # one WebSocket message
    request_bytes: int = 100 * MEBIBYTE  # one HTTP request
    idle_seconds: float = 30.0  # without a message from the client, or without the client reading what it is sent
    drain_seconds: float = 60.0  # for open streams to finish when the server stops
    beam: int = 20  # largest beam that a stream may choose
    hotwords: int = 100  # most hotwords in one stream
    phrases: int = 1000  # longest phrase list of one stream

    def for_clients(self) -> dict[str, Any]:
        """The limits that the client of a stream must observe."""
        names = ("stream_seconds", "message_bytes", "idle_seconds", "beam", "hotwords", "phrases")
        return {name: getattr(self, name) for name in names}


class StreamLimiter:
    """Counts open streams and rejects new ones at the limit or while the server drains.

    Only the event loop's thread uses it, so it needs no lock.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open_streams = 0
        self.silent_connections = 0  # accepted, without a message yet; they occupy no slot
        self.draining = False

    @property
    def rejection(self) -> StreamError | None:
        """The error for a connection or recording that would start now; None if it would be accepted."""
        if self.draining:
            return StreamError("draining", "The server is shutting down; use another server.")
        return self._busy

    @property
    def _busy(self) -> StreamError | None:
        if self.open_streams >= self.limit:
            count = "The only stream" if self.limit == 1 else f"All {self.limit} streams"
            verb = "is" if self.limit == 1 else "are"
            return StreamError("busy", f"{count} of this server {verb} in use; try again later.")
        return None

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Occupy one slot, or raise an error if all are in use. A connection accepted before a drain gets one."""
        if busy := self._busy:
            raise busy
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Count a connection that has not sent a message yet."""
        self.silent_connections += 1
        try:
            yield
        finally:
            self.silent_connections -= 1
