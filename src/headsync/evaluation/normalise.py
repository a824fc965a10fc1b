"""Normalisation of texts before errors are counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, get_args

from headsync.errors import ConfigError, HeadsyncError

Normalisation = Literal["none", "words", "english"]
WORD = re.compile(r"\w+(?:['’]\w+)*")


def normaliser(name: Normalisation) -> Callable[[str], str]:
    """ "none" keeps the text, "words" removes case and punctuation, "english" is Whisper's English normaliser.

    The last also writes numbers as digits and makes the spelling American.
    """
    if name == "none":
        return str
    if name == "words":
        return lambda text: " ".join(WORD.findall(text.casefold()))
    if name != "english":
        raise ConfigError(f'normalise = "{name}" is not known; it can be {", ".join(get_args(Normalisation))}')
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ModuleNotFoundError:
        raise HeadsyncError(
            "--normalise english requires the package whisper-normalizer: pip install 'headsync[evaluation]'"
        ) from None
    normalise: Callable[[str], str] = EnglishTextNormalizer()
    return lambda text: normalise(text).strip()
