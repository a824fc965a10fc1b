"""Where the commands get their recogniser from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headsync.measure.timing import Listener


def load_recognizer(
    model: str | None,
    *,
    beam: int | None = None,
    lookahead_frames: int | None = None,
    threshold: float | None = None,
    ctc_weight: float | None = None,
) -> Listener:
    """Load a model by name or folder; None is the shipped one, and a setting of None is what its folder says."""
    from headsync.recognizer import Recognizer

    return Recognizer.load(
        model, beam=beam, lookahead_frames=lookahead_frames, threshold=threshold, ctc_weight=ctc_weight
    )


def shipped_models() -> dict[str, Path]:
    """The folders of the models that came with the package, by name."""
    from headsync.folder import shipped

    return shipped()
