"""`headsync demo`: the bundled recordings through the shipped model, with what to expect of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headsync.cli import loading, options
from headsync.cli.screen import describe, open_screen, say
from headsync.cli.streaming import paced, stream
from headsync.errors import DataError

if TYPE_CHECKING:
    from headsync.measure.timing import Listener

RECORDINGS = Path(__file__).parent.parent / "demo"


def demo(
    model: options.ModelName = None,
    engine: options.EngineChoice = options.EngineName.auto,
    fast: Annotated[bool, typer.Option("--fast", help="As fast as it goes, not at the speed of speech.")] = False,
) -> None:
    """Stream the bundled recordings and compare with what was said."""
    recordings = sorted(RECORDINGS.glob("*.flac"))
    if not recordings:
        raise DataError(f"{RECORDINGS}: there are no recordings; install headsync again.")
    recognizer = loading.load_recognizer(model, engine=engine.value)
    right = [_play(recognizer, recording, fast) for recording in recordings]
    say(f"{sum(right)} of {len(right)} recordings as expected", style="bold")
    if not all(right):
        raise typer.Exit(1)


def _play(recognizer: Listener, recording: Path, fast: bool) -> bool:
    """Show one recording; tells whether its text was the expected one."""
    from headsync.audio import stream_audio

    expected = " ".join(recording.with_suffix(".txt").read_text(encoding="utf-8").split())
    pieces = stream_audio(recording)
    say(recording.stem, style="bold")
    with open_screen("  ", timeline=True) as screen:
        session = stream(recognizer, pieces if fast else paced(pieces), screen.show)
    say(f"  {describe(session)}")
    right = session.text == expected
    say("  as expected" if right else f"  expected: {expected}", style="green" if right else "red")
    return right
