"""Origin check of WebSockets, as ASGI middleware. Browsers let any page open a WebSocket to any host; this one accepts
only pages of the same host and of the allowed origins. Programs that are not browsers send no Origin and are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from headsync.errors import ConfigError
from headsync.server.auth import denial

ANY = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


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
    if origin == ANY or (
        parts.scheme in ("http", "https") and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"
    ):
        return origin.lower()
    raise ConfigError(f'--allow-origin: "{origin}" is not an origin; write, for example, https://example.org, or *')
