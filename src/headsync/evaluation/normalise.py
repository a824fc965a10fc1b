"""Normalisation of texts before errors are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from headsync.errors import ConfigError, HeadsyncError

Normalisation = Literal["none", "english"]


def normaliser(name: Normalisation) -> Callable[[str], str]:
    """ "none" keeps the text; "english" is Whisper's English normaliser (case, punctuation, numbers, spelling)."""
    if name == "none":
        return str
    if name != "english":
        raise ConfigError(f'normalise = "{name}" is not known; known are {", ".join(get_args(Normalisation))}')
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ModuleNotFoundError:
        raise HeadsyncError(
            "--normalise english requires the package whisper-normalizer: pip install 'headsync[evaluation]'"
        ) from None
    normalise: Callable[[str], str] = EnglishTextNormalizer()
    return lambda text: normalise(text).strip()
