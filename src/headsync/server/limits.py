"""Bounds of one server process: every quantity that a client can make grow has a limit here.

A client, for the limits of each client, is an address and, if the server has several tokens, also a token. Only the
event loop's thread counts clients and streams, so no lock is needed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from headsync.server.errors import StreamError

MEBIBYTE = 1 << 20
MINUTE = 60.0
CLIENTS = "headsync.clients"  # key of the clients, as `StreamLimiter` counts them, in the scope of a connection


@dataclass(frozen=True)
class Limits:
    streams: int = 100  # open at the same time, including transcriptions of recordings
    client_streams: int | None = None  # of one client, including connections without a message; None: no limit
    client_connections: int | None = None  # new requests and connections of one client in a minute; None: no limit
    stream_seconds: float = 4 * 3600.0  # audio in one stream or recording
    message_bytes: int = MEBIBYTE  # one WebSocket message
    request_bytes: int = 512 * MEBIBYTE  # one HTTP request; a WAV of `stream_seconds` at 16 kHz has 440 MiB
    idle_seconds: float = 30.0  # without a message from the client, or without the client reading
    drain_seconds: float = 60.0  # for open streams to finish when the server stops
    beam: int = 20  # largest beam that a stream may choose
    hotwords: int = 100  # most hotwords in one stream
    phrases: int = 1000  # longest phrase list of one stream

    def for_clients(self) -> dict[str, Any]:
        """The limits that the client of a stream must observe."""
        names = ("stream_seconds", "message_bytes", "idle_seconds", "beam", "hotwords", "phrases")
        return {name: getattr(self, name) for name in names}


def address_client(host: str) -> str:
    """The client of an address. The 2^64 addresses of an IPv6 subnet usually belong to one client."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return host
    return str(address.ipv4_mapped or ip_network((int(address), 64), strict=False))


class ConnectionRate:
    """Limits how often each client connects. After a minute without connections a client may open all of a minute's
    connections at once.
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self.clock = per_minute, clock
        self._free_at: dict[str, float] = {}  # when a client has all of a minute's connections again
        self._next_cleanup = clock() + MINUTE

    def connect(self, client: str) -> None:
        """Count a connection, or raise an error if it is one too many."""
        if self._per_minute is None:
            return
        now = self.clock()
        if now >= self._next_cleanup:
            self._free_at = {one: at for one, at in self._free_at.items() if at > now}
            self._next_cleanup = now + MINUTE
        free_at = max(now, self._free_at.get(client, now)) + MINUTE / self._per_minute
        if (wait := math.ceil(round(free_at - now - MINUTE, 6))) > 0:
            count = f"{self._per_minute} new connections per minute"
            raise StreamError("client-limit", f"The limit for a client is {count}; try again in {wait} s.", wait)
        self._free_at[client] = free_at


class StreamLimiter:
    """Counts open streams and rejects new ones at the limits or while the server drains."""

    def __init__(self, limits: Limits) -> None:
        self.limit, self._client_limit = limits.streams, limits.client_streams
        self.open_streams = 0
        self.client_streams: Counter[str] = Counter()  # open streams and connections of each client
        self.silent_connections = 0  # accepted, without a message yet; they occupy no slot
        self.draining = False

    def rejection(self, clients: Iterable[str] = ()) -> StreamError | None:
        """The error for a connection or recording that would start now; None if it would be accepted."""
        if self.draining:
            return StreamError("draining", "The server is shutting down; use another server.")
        limit = self._client_limit
        if limit is not None and any(self.client_streams[client] >= limit for client in clients):
            count = f"{limit} open {'stream' if limit == 1 else 'streams'}"
            return StreamError("client-limit", f"The limit for a client is {count}; finish one and try again.")
        return self._busy

    @contextmanager
    def count_client(self, clients: Sequence[str]) -> Iterator[None]:
        """Count a stream or connection of these clients."""
        self.client_streams.update(clients)
        try:
            yield
        finally:
            self.client_streams.subtract(clients)
            self.client_streams += Counter()  # drops the zeros

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
