"""Errors of a stream or request: a code, a message, and a WebSocket close code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headsync.errors import HeadsyncError

# WebSocket close codes.
NORMAL, GOING_AWAY, POLICY, INTERNAL, TRY_LATER = 1000, 1001, 1008, 1011, 1013

CLOSE_CODES = {
    "message": POLICY,  # unknown, malformed, or not allowed in this state
    "version": POLICY,
    "setting": POLICY,
    "model": POLICY,
    "audio": POLICY,
    "too-long": POLICY,
    "idle": POLICY,
    "busy": TRY_LATER,
    "client-limit": TRY_LATER,
    "draining": GOING_AWAY,
    "internal": INTERNAL,
}
RETRY_SECONDS = {"busy": 5, "draining": 5, "client-limit": 5}  # errors after which a client may try again


class StreamError(HeadsyncError):
    def __init__(self, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.close_code = code, CLOSE_CODES[code]
        self.retry_after = retry_after or RETRY_SECONDS.get(code)  # seconds; None: trying again does not help

    @property
    def retry(self) -> dict[str, int]:
        """The field `retry_after` of an error message, if there is one."""
        return {} if self.retry_after is None else {"retry_after": self.retry_after}

    @property
    def retry_header(self) -> dict[str, str]:
        """The header of an HTTP response, if there is one."""
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}

    def to_dict(self) -> dict[str, Any]:
        """The error message of `/v1/stream`."""
        return {"type": "error", "code": self.code, "message": " ".join(str(self).split()), **self.retry}


def require(condition: bool, message: str) -> None:
    """Raise an error of the client unless the condition holds."""
    if not condition:
        raise StreamError("setting", f"{message}.")


def unknown_model(name: str, served: Sequence[str]) -> StreamError:
    names = ", ".join(f'"{one}"' for one in served)
    return StreamError("model", f'There is no model "{name}"; this server has {names}.')


def internal_error() -> StreamError:
    """The error for a fault of the server; the log has the traceback."""
    return StreamError("internal", "The server failed on this request; its log has the details. Try again.")


def api_error(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """The body of an HTTP error, in the format of OpenAI's API."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
