"""Logging of the server: text or JSON lines, and an access log with an id for every request and stream.

The id is also sent to the client, in the header `x-request-id` of the response or of the WebSocket handshake.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LogLevel: TypeAlias = Literal["error", "warning", "info", "debug"]
LogFormat: TypeAlias = Literal["text", "json"]

log = logging.getLogger("headsync.access")
ID_HEADER = b"x-request-id"
RECORD = "headsync.access"  # key of the record in the ASGI scope


def configure_logging(level: LogLevel, form: LogFormat) -> None:
    """Write the logs of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name in ("headsync", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO headsync.access: message key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        lines = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        return f"{lines}\n{self.formatException(record.exc_info)}" if record.exc_info else lines


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        entry |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AccessLog:
    """ASGI middleware: gives every request and WebSocket an id and logs it when it ends. Queries, which may contain
    tokens, are not logged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        with logged(scope, **_request_fields(scope)) as fields:

            async def send_with_id(message: Message) -> None:
                if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                    message["headers"] = [*message.get("headers", ()), (ID_HEADER, fields["id"].encode())]
                    fields["status"] = message.get("status", 101)
                elif message["type"] == "websocket.close":
                    fields.setdefault("status", 403)  # closed before it was accepted
                    fields["close_code"] = message.get("code", 1000)
                await send(message)

            await self.app(scope, receive, send_with_id)


@contextmanager
def logged(scope: Scope, **fields: Any) -> Iterator[dict[str, Any]]:
    """Give a request or stream an id, and log it at the end of the block with the fields that it has then."""
    start = time.perf_counter()
    record = scope[RECORD] = {"id": secrets.token_hex(8), **fields}
    try:
        yield record
    finally:
        record["seconds"] = round(time.perf_counter() - start, 3)
        log.info("request", extra={"fields": record})


def note(scope: Scope, **fields: Any) -> None:
    scope.get(RECORD, {}).update(fields)


def note_stream(scope: Scope, protocol: str, outcome: str, audio_seconds: float, computing_seconds: float) -> None:
    seconds = {"audio_seconds": round(audio_seconds, 3), "computing_seconds": round(computing_seconds, 3)}
    note(scope, stream=protocol, outcome=outcome, **seconds)


def request_id(scope: Scope) -> str:
    return str(scope.get(RECORD, {}).get("id", "-"))


def _request_fields(scope: Scope) -> dict[str, Any]:
    host, port = scope.get("client") or ("-", 0)
    method = scope["method"] if scope["type"] == "http" else "WEBSOCKET"
    return {"client": f"{host}:{port}", "method": method, "path": scope["path"]}
