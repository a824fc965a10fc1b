"""Checks of every request, as ASGI middleware: the origin of WebSockets, the token and the rate of connections, and the
size and speed of bodies. A request that fails is answered before its body is read: the framework would read a whole
body before it calls a route.

Browsers let any page open a WebSocket to any host; this server accepts only pages of the same host and of the allowed
origins. Programs that are not browsers send no Origin and are accepted.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Collection, Mapping
from urllib.parse import parse_qs, urlsplit

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headsync.errors import ConfigError
from headsync.server.errors import StreamError, api_error
from headsync.server.limits import CLIENTS, ConnectionRate, Limits, address_client

PROTECTED = ("/v1/", "/vosk", "/metrics")  # and every WebSocket; the page and the health checks are public
MESSAGE = "The token is missing or wrong; send it in the header Authorization: Bearer TOKEN."
ANY = "*"  # origin
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
MIN_BYTES_PER_SECOND = 1000  # average over a body


class Admission:
    """Rejects requests and WebSockets of clients that connect too often or lack a token, if the server has tokens."""

    def __init__(self, app: ASGIApp, token: str | None, rate: ConnectionRate, rejected: Callable[[str], None]) -> None:
        self.app, self.rate, self.rejected = app, rate, rejected
        self.tokens = None if token is None else token.split()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" and not scope.get("path", "").startswith(PROTECTED):
            await self.app(scope, receive, send)
            return
        try:
            response = self._admit(scope)
        except StreamError as error:
            self.rejected(error.code)
            response = denial(429, str(error), error.code, error.retry_header)
        await (response or self.app)(scope, receive, send)

    def _admit(self, scope: Scope) -> JSONResponse | None:
        """Count the connection and note whose it is; returns a response if its token is wrong."""
        clients = [address_client((scope.get("client") or ("-", 0))[0])]
        self.rate.connect(clients[0])
        if self.tokens is not None:
            matches = [number for number, token in enumerate(self.tokens) if _presents(scope, token)]
            if not matches:
                self.rejected("token")
                return denial(401, MESSAGE, "invalid_api_key", {"www-authenticate": "Bearer"})
            if len(self.tokens) > 1:  # the limits of a single token would be those of the server
                clients.append(f"token {matches[0]}")
                self.rate.connect(clients[1])
        scope[CLIENTS] = clients
        return None


def _presents(scope: Scope, token: str) -> bool:
    """Whether the request has the token. The comparison takes the same time for any wrong token."""
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    scheme, _, credentials = header.partition(" ")
    parameter = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
    offered = credentials.strip() if scheme.lower() in ("bearer", "token") else parameter  # Deepgram's is "Token"
    return hmac.compare_digest(offered.encode(), token.encode())


def denial(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error that closes the connection; it answers a request or a WebSocket handshake."""
    return JSONResponse(api_error(message, code=code), status, {"connection": "close", **(headers or {})})


class OriginCheck:
    """Rejects WebSockets from pages of other origins."""

    def __init__(self, app: ASGIApp, allowed: Collection[str], rejected: Callable[[str], None]) -> None:
        self.app, self.allowed, self.rejected = app, allowed, rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or self._is_allowed(scope):
            await self.app(scope, receive, send)
        else:
            self.rejected("origin")
            response = denial(403, "This origin is not allowed; the operator can add it with --allow-origin.")
            await response(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        if b"origin" not in headers or ANY in self.allowed:
            return True
        origin = headers[b"origin"].decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return origin in self.allowed or _same_host(origin, host)


def _same_host(origin: str, host: str) -> bool:
    """Whether the page is of the host that the request names; a TLS proxy may have changed the scheme."""
    try:
        parts = urlsplit(origin)
        default = _DEFAULT_PORTS[parts.scheme]
        named = urlsplit(f"//{host}")
        return parts.hostname == named.hostname and (parts.port or default) == (named.port or default)
    except (ValueError, KeyError):  # "null", or malformed
        return False


def check_origin(origin: str) -> str:
    """An origin of `--allow-origin`, normalised."""
    parts = urlsplit(origin)
    is_complete = parts.scheme in ("http", "https") and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"
    if origin == ANY or is_complete:
        return origin.lower()
    raise ConfigError(f'--allow-origin: "{origin}" is not an origin; write, for example, https://example.org, or *')


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
