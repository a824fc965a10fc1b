"""Admission, as ASGI middleware: a request without the token, or of a client that connects too often, is answered
before its body is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headsync.server.errors import StreamError, api_error
from headsync.server.limits import CLIENTS, ConnectionRate, address_client

PROTECTED = ("/v1/", "/vosk", "/metrics")  # and every WebSocket; the page and the health checks are public
MESSAGE = "The token is missing or wrong; send it in the header Authorization: Bearer TOKEN."


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
