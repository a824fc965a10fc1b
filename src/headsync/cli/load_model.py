"""Models for the commands; tests replace these functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headsync.errors import ConfigError

if TYPE_CHECKING:
    from headsync.recognizer import Recognizer


def load_recognizer(
    model: str | None,
    *,
    lm: Path | None = None,
    hotwords: Sequence[tuple[str, float]] = (),
    phrases: Sequence[str] = (),
    **settings: Any,
) -> Recognizer:
    """Load a model by name or folder; None is the default model, a setting of None its stored value."""
    from headsync.recognizer import Recognizer

    with option_names():
        return Recognizer.load(model, lm=lm, hotwords=hotwords, phrases=phrases, **settings)


_SAME_NAME = ("beam", "ctc_weight", "lm", "lm_weight", "lm_use", "nbest", "threshold", "centre_ms", "right_ms")
_OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in _SAME_NAME},
    "lookahead_frames": "--lookahead",
    "pause_seconds": "--endpoint pause",
    "longest_seconds": "--endpoint length",
    "silence_seconds": "--endpoint silence",
}


@contextmanager
def option_names() -> Iterator[None]:
    """Replace the names of Python arguments in errors by those of options."""
    try:
        yield
    except ConfigError as error:
        message = str(error).removeprefix("decoding: ").removeprefix("endpoint: ")
        names = "|".join(_OPTIONS)
        outside_paths = rf"(?<![\w/.-])({names})(?![\w/.-])"
        raise ConfigError(re.sub(outside_paths, lambda found: _OPTIONS[found[1]], message)) from None


def known_models() -> dict[str, Path]:
    """The folders of the shipped and the downloaded models, by name."""
    from headsync.model_folder import cached, shipped

    return {**cached(), **shipped()}
