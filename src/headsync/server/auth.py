"""Token authentication, as ASGI middleware: a request without the token is answered before its body is read."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from headsync.server.errors import api_error

PROTECTED = ("/v1/", "/vosk", "/metrics")  # and every WebSocket; the page and the health checks are public
MESSAGE = "The token is missing or wrong; send it in the header Authorization: Bearer TOKEN."


class TokenAuth:
    """Rejects requests and WebSockets that do not present the token, if the server has one."""

    def __init__(self, app: ASGIApp, token: str | None, rejected: Callable[[str], None]) -> None:
        self.app, self.token, self.rejected = app, token, rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.token is None or not _is_protected(scope) or _presents(scope, self.token):
            await self.app(scope, receive, send)
        else:
            self.rejected("token")
            await deny(scope, send, 401, MESSAGE, "invalid_api_key")


def _is_protected(scope: Scope) -> bool:
    return scope["type"] == "websocket" or (scope["type"] == "http" and str(scope["path"]).startswith(PROTECTED))


def _presents(scope: Scope, token: str) -> bool:
    """Whether the request has the token. The comparison takes the same time for any wrong token."""
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    scheme, _, credentials = header.partition(" ")
    parameter = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
    offered = credentials.strip() if scheme.lower() in ("bearer", "token") else parameter  # Deepgram's is "Token"
    return hmac.compare_digest(offered.encode(), token.encode())


async def deny(scope: Scope, send: Send, status: int, message: str, code: str | None = None) -> None:
    """Answer a request or a WebSocket handshake with an error and close the connection."""
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    body = json.dumps(api_error(message, code=code)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
