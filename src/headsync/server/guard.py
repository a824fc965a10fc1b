"""The door: tokens and sizes, looked at before anything else of a request is.

An ASGI layer around the application, because a framework reads the body of a request before it asks who sends it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headsync.server.limits import Limits

SLOWEST_BYTES = 1000  # a second, on average, of a body that comes drop by drop
GUARDED = ("/v1/", "/vosk", "/metrics")  # the page, its parts and the health checks are open to all


class Guard:
    """Lets nobody in without the token, where there is one, and no body that is too large or too slow."""

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits, refused: Callable[[str], None]) -> None:
        self.app, self.token, self.limits, self.refused = app, token, limits, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif self._guarded(scope) and not self._knows(scope):
            self.refused("token")
            await _refuse(scope, send, 401, "The token is missing or wrong; send it as Authorization: Bearer TOKEN.")
        elif scope["type"] == "websocket":
            await self.app(scope, receive, send)
        else:
            await self._measured(scope, receive, send)

    def _guarded(self, scope: Scope) -> bool:
        return scope["type"] == "websocket" or str(scope["path"]).startswith(GUARDED)

    def _knows(self, scope: Scope) -> bool:
        """Whether the token is the right one; the time that this takes does not tell how much of it is."""
        if self.token is None:
            return True
        header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        scheme, _, given = header.partition(" ")
        named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        offered = given.strip() if scheme.lower() == "bearer" else named
        return hmac.compare_digest(offered.encode(), self.token.encode())

    async def _measured(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.limits.request_bytes:
            error = self._too_large()
            await _refuse(scope, send, error.status_code, error.detail)
        else:
            await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        """The body as it comes; the framework turns what is raised here into an answer."""
        taken, more, began = 0, True, time.monotonic()

        async def counted() -> Message:
            nonlocal taken, more
            if not more:
                return await receive()  # the client leaving, which may take its time
            left = began + self.limits.idle_seconds + taken / SLOWEST_BYTES - time.monotonic()
            try:
                async with asyncio.timeout(min(left, self.limits.idle_seconds)):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            taken, more = taken + len(message.get("body", b"")), message.get("more_body", False)
            if taken > self.limits.request_bytes:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> HTTPException:
        self.refused("size")
        return HTTPException(413, f"A request may have {self.limits.request_bytes} bytes here; send less at a time.")

    def _too_slow(self) -> HTTPException:
        self.refused("idle")
        least = f"without a pause of {self.limits.idle_seconds:g} s and at {SLOWEST_BYTES} bytes a second or more"
        return HTTPException(408, f"The request came too slowly; send it again, {least}.")


def error_body(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """An error in the form of OpenAI's API."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def _refuse(scope: Scope, send: Send, status: int, message: str) -> None:
    """Answer a request, or a WebSocket that wants to be opened, with an error, and hang up."""
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = json.dumps(error_body(message, code="invalid_api_key" if status == 401 else None)).encode()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
