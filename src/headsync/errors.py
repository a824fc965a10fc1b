"""Errors of the package; every message is one sentence with the place, the problem and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class HeadsyncError(Exception):
    """The base class of all errors of the package."""


class AudioError(HeadsyncError):
    """Audio that cannot be decoded or used."""


class ConfigError(HeadsyncError):
    """A recipe, setting or argument that is not valid."""


class DataError(HeadsyncError):
    """A corpus, manifest, transcript or output that cannot be used."""


class ModelError(HeadsyncError):
    """A model folder that is incomplete or damaged."""


class TrainingError(HeadsyncError):
    """A training run that cannot continue."""


def nearest(key: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the most similar known name, or all known names."""
    close = difflib.get_close_matches(key, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; known here: {', '.join(sorted(known))}"


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def nearest_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown name, with the most similar known name."""
    return ConfigError(f'{kind} "{name}" is not known{nearest(name, known)}')
