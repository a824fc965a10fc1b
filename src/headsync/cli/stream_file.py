"""A recording as a stream: the loop of `transcribe` and `demo`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headsync.evaluation.timed_session import SessionFactory, TimedSession
    from headsync.events import Event
    from headsync.frontend.audio import Piece


def stream(recognizer: SessionFactory, pieces: Iterable[Piece], show: Callable[[Event], None]) -> TimedSession:
    """Push the pieces through a new session, show its events, and return it for its figures."""
    from headsync.evaluation.timed_session import TimedSession

    session = TimedSession(recognizer)
    for samples, sample_rate in pieces:
        for event in session.push(samples, sample_rate):
            show(event)
    for event in session.finish():
        show(event)
    return session


def paced(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Delay each piece to the time of its end in real time."""
    start = time.monotonic()
    spoken_seconds = 0.0
    for samples, sample_rate in pieces:
        spoken_seconds += len(samples) / sample_rate
        time.sleep(max(0.0, start + spoken_seconds - time.monotonic()))
        yield samples, sample_rate
