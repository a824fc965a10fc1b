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
