from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headsync.cli import load_model, options
from headsync.cli.display import open_screen, paced, print_dim, stream, summarise
from headsync.errors import DataError

if TYPE_CHECKING:
    from headsync.evaluation.timed_session import SessionFactory

RECORDINGS = Path(__file__).parent.parent / "demo"


def demo(
    model: options.ModelName = None,
    engine: options.EngineChoice = "auto",
    fast: Annotated[bool, typer.Option("--fast", help="Do not pace the recordings at the speed of speech.")] = False,
) -> None:
    """Stream the bundled recordings and compare the results with their texts."""
    recordings = sorted(RECORDINGS.glob("*.flac"))
    if not recordings:
        raise DataError(f"{RECORDINGS}: the recordings are missing; install headsync again.")
    recognizer = load_model.load_recognizer(model, engine=engine)
    right = [_play(recognizer, recording, fast) for recording in recordings]
    print_dim(f"{sum(right)} of {len(right)} recordings as expected", style="bold")


def _play(recognizer: SessionFactory, recording: Path, fast: bool) -> bool:
    """Show one recording; returns whether its text is the expected one."""
    from headsync.frontend.audio import stream_audio

    expected = " ".join(recording.with_suffix(".txt").read_text(encoding="utf-8").split())
    pieces = stream_audio(recording)
    print_dim(recording.stem, style="bold")
    with open_screen("  ", timeline=True) as screen:
        session = stream(recognizer, pieces if fast else paced(pieces), screen.show)
    print_dim(f"  {summarise(session)}")
    right = session.text == expected
    print_dim("  as expected" if right else f"  expected: {expected}", style="green" if right else "red")
    return right
