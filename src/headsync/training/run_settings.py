"""Settings that must stay the same when a run resumes.

Only values that differ from the defaults are stored, so that a version with more settings can resume the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headsync.config import TABLES_OF_KIND, Config
from headsync.text.vocabulary import Vocabulary

FREE = ("epochs", "patience", "checkpoint_seconds", "folder", "accumulate")
_FREE = {*(f"training.{name}" for name in FREE), "data.workers"}
_VOCABULARY = "vocabulary"


def fixed_settings(config: Config, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """The settings that weights depend on, by "table.key", and a digest of the vocabulary."""
    defaults = _all_settings(Config(kind=config.kind))
    found = {name: value for name, value in _all_settings(config).items() if value != defaults[name]}
    if vocabulary is not None:
        found[_VOCABULARY] = hashlib.sha256("\n".join(vocabulary.tokens).encode()).hexdigest()[:16]
    return found


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """A description of the settings that differ; "" without a difference."""
    defaults = {name: value for kind in TABLES_OF_KIND for name, value in _all_settings(Config(kind=kind)).items()}
    changed = []
    for name in sorted({*before, *now} - {_VOCABULARY}):
        old, new = (settings.get(name, defaults.get(name)) for settings in (before, now))
        if old != new:
            changed.append(f"{name} was {old!r} and is now {new!r}")
    if not changed and before.get(_VOCABULARY) != now.get(_VOCABULARY):
        changed = ["the vocabulary, built from data.train, has changed"]
    return ", ".join(changed)


def _all_settings(config: Config) -> dict[str, Any]:
    tables = (table for table in TABLES_OF_KIND[config.kind] if table not in ("decoding", "endpoint"))
    found = {f"{table}.{key}": value for table in tables for key, value in asdict(getattr(config, table)).items()}
    return {name: value for name, value in found.items() if name not in _FREE}
