"""What can go wrong, as a person meets it.

    HeadsyncError
    ├── AudioError      a sound that cannot be read, or is not sound
    ├── ConfigError     a recipe or setting that is not understood
    ├── DataError       a corpus, manifest or transcript that does not fit
    ├── ModelError      a model folder that is missing something or damaged
    └── TrainingError   a run that cannot go on

Every message is one sentence for a person: what is wrong, where, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadsyncError(Exception):
    """The root of the tree above; the command line prints it as one sentence."""


class AudioError(HeadsyncError):
    """A sound that cannot be read, or is not sound."""


class ConfigError(HeadsyncError):
    """A recipe or setting that is not understood."""


class DataError(HeadsyncError):
    """A corpus, manifest or transcript that does not fit."""


class ModelError(HeadsyncError):
    """A model folder that is missing something or damaged."""


class TrainingError(HeadsyncError):
    """A run that cannot go on."""


def nearest(key: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: the one that may have been meant, or all there are."""
    close = difflib.get_close_matches(key, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; known here: {', '.join(sorted(known))}"


def nearest_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is in no registry, with the nearest one that is."""
    return ConfigError(f'{kind} "{name}" is not known{nearest(name, known)}')
