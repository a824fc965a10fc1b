"""Size and speed of request bodies, as ASGI middleware: the framework reads a whole body before it calls a route."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headsync.server.auth import denial
from headsync.server.limits import Limits

MIN_BYTES_PER_SECOND = 1000  # average over a body


class BodyLimits:
    """Rejects bodies that are too large or arrive too slowly."""

    def __init__(self, app: ASGIApp, limits: Limits, rejected: Callable[[str], None]) -> None:
        self.app, self.limits, self.rejected = app, limits, rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.limits.request_bytes:
            error = self._too_large()
            await denial(error.status_code, error.detail)(scope, receive, send)
        else:
            await self.app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        """`receive` with both limits; the application turns the exceptions raised here into responses."""
        received, more, start = 0, True, time.monotonic()

        async def limited() -> Message:
            nonlocal received, more
            if not more:
                return await receive()  # the disconnect message; it has no time limit
            remaining = start + self.limits.idle_seconds + received / MIN_BYTES_PER_SECOND - time.monotonic()
            try:
                async with asyncio.timeout(min(remaining, self.limits.idle_seconds)):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            received, more = received + len(message.get("body", b"")), message.get("more_body", False)
            if received > self.limits.request_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> HTTPException:
        self.rejected("size")
        return HTTPException(413, f"The request is larger than the limit of {self.limits.request_bytes} bytes.")

    def _too_slow(self) -> HTTPException:
        self.rejected("idle")
        limit = f"at least {MIN_BYTES_PER_SECOND} bytes per second and no pause of {self.limits.idle_seconds:g} s"
        return HTTPException(408, f"The request body arrived too slowly; send {limit}.")
