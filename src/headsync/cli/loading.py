"""Where the commands get their recogniser from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headsync.recognizer import Recognizer


def load_recognizer(
    model: str | None, *, lm: Path | None = None, hotwords: Sequence[tuple[str, float]] = (), **settings: Any
) -> Recognizer:
    """Load a model by name or folder; None is the shipped one, and a setting of None is what its folder says."""
    from headsync.recognizer import Recognizer

    return Recognizer.load(model, lm=lm, hotwords=hotwords, **settings)


def shipped_models() -> dict[str, Path]:
    """The folders of the models that came with the package, by name."""
    from headsync.folder import shipped

    return shipped()
