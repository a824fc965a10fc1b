"""Why a stream ends badly: a code for programs, a sentence for people, and the close code of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headsync.errors import HeadsyncError

# Close codes of WebSockets.
NORMAL, GOING_AWAY, POLICY, INTERNAL, TRY_LATER = 1000, 1001, 1008, 1011, 1013

CLOSE_CODES = {
    "message": POLICY,  # not of the protocol, or not now
    "version": POLICY,
    "setting": POLICY,
    "model": POLICY,
    "audio": POLICY,
    "too-long": POLICY,
    "idle": POLICY,
    "busy": TRY_LATER,
    "leaving": GOING_AWAY,
    "internal": INTERNAL,
}


class StreamError(HeadsyncError):
    """A stream that cannot go on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.close = code, CLOSE_CODES[code]

    def to_dict(self) -> dict[str, Any]:
        """The error message of the protocol."""
        return {"type": "error", "code": self.code, "message": " ".join(str(self).split())}


def no_model(name: str, there: Sequence[str]) -> StreamError:
    """What a client is told that wants a model that is not served."""
    return StreamError(
        "model", f'There is no model "{name}" here; this server has ' + ", ".join(map(_quoted, there)) + "."
    )


def _quoted(name: str) -> str:
    return f'"{name}"'


def internal() -> StreamError:
    """What a client is told of a fault that is ours; the log has the rest."""
    return StreamError("internal", "The server made a mistake with this stream; open another one.")
