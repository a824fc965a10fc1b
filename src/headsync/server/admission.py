"""Who may enter: so many streams at a time, and none once the server has to leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headsync.server.trouble import StreamError


class Admission:
    """The open streams of one process. Used by the event loop alone, so that plain numbers do."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.leaving = False

    @property
    def refusal(self) -> StreamError | None:
        """Why no stream may enter now; None if one may."""
        if self.leaving:
            return StreamError("leaving", "This server is about to stop; try another one.")
        if self.open >= self.most:
            return StreamError("busy", f"All {self.most} streams of this server are in use; try again later.")
        return None

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Be one of the streams, or be refused."""
        if refusal := self.refusal:
            raise refusal
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
