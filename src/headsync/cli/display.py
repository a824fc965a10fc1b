"""A recording as a stream, and the display of its text.

The text grows in place on a terminal, and is printed line by line in a pipe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

import typer

from headsync.events import Event, Final, Partial

if TYPE_CHECKING:
    from rich.console import Console

    from headsync.evaluation.timed_session import SessionFactory, TimedSession
    from headsync.frontend.audio import Piece


class Lines(AbstractContextManager["Lines"]):
    """For pipes and files: a line for each final text, or with `timeline` for each text, with its time in the audio."""

    def __init__(self, prefix: str = "", timeline: bool = False) -> None:
        self._prefix, self._timeline = prefix, timeline

    def show(self, event: Event) -> None:
        if self._timeline and isinstance(event, Partial | Final):
            mark = "." if isinstance(event, Final) and not event.text.endswith((".", "?", "!")) else ""
            typer.echo(f"{self._prefix}{event.time_seconds:6.2f} s  {event.text}{mark}")
        elif isinstance(event, Final):
            typer.echo(f"{self._prefix}{event.text}")

    def __exit__(self, *raised: object) -> None:
        """Nothing to restore."""


class Growing(AbstractContextManager["Growing"]):
    """For terminals: the utterance grows on the last line, and moves up when it is final."""

    def __init__(self, console: Console, prefix: str = "") -> None:
        from rich.live import Live

        self._prefix = prefix
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, event: Event) -> None:
        from rich.text import Text

        if isinstance(event, Final):
            self._live.update(Text(""), refresh=True)
            self._live.console.print(Text(f"{self._prefix}{event.text}"))
        elif isinstance(event, Partial):
            gap = " " if event.committed and event.tentative else ""
            line = Text(f"{self._prefix}{event.committed}{gap}").append(event.tentative, style="dim")
            self._live.update(line, refresh=True)

    def __exit__(self, *raised: object) -> None:
        self._live.stop()


Screen: TypeAlias = Lines | Growing  # context managers, so that the cursor is restored after an error


def open_screen(prefix: str = "", timeline: bool = False) -> Screen:
    """A screen for standard output: a terminal or a pipe; with `timeline` a pipe shows growing text."""
    if not sys.stdout.isatty():
        return Lines(prefix, timeline)
    from rich.console import Console

    return Growing(Console(), prefix)


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


def summarise(session: TimedSession) -> str:
    """The figures of a stream in one line; figures without a value are left out."""
    from headsync.evaluation.latency import percentiles

    delays = percentiles(session.delays)
    ratios = [final.cost_ratio for final in session.finals]
    parts = [f"real-time factor {session.real_time_factor:.2f}"]
    if ratios:
        parts.insert(0, f"r {sum(ratios) / len(ratios):.2f}")
    if delays:
        parts.insert(0, f"delay {delays.p50:.2f} s")
    return " · ".join(parts)


def print_dim(text: str, style: str = "dim") -> None:
    """Print a dim line; without colour in a pipe."""
    from rich.console import Console
    from rich.text import Text

    Console(file=sys.stdout, force_terminal=sys.stdout.isatty()).print(Text(text, style=style), soft_wrap=True)
