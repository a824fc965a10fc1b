"""Reuse of earlier runs: whether they match the current plan and recipe.

A model folder contains the settings of its run. Settings that the weights depend on must be unchanged; runs are never
deleted. A run with more epochs is continued. Decoding settings may change at any time.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headsync._atomic_write import write_atomically
from headsync.config import Config, DecodingConfig, EndpointConfig
from headsync.errors import TrainingError
from headsync.model_folder import CONFIG
from headsync.recipe import dump, load_config
from headsync.training.checkpoint import difference, fixed_settings

DONE = "done.json"  # beside a model: its training is complete
_CALIBRATED = ("confidence_scale", "confidence_offset")  # by `headsync calibrate`; no table depends on them


@dataclass(frozen=True)
class ExistingRun:
    """An existing run: its settings, and those of the current plan."""

    run: Path
    had: Config
    wanted: Config

    @property
    def is_done(self) -> bool:
        """Whether training is complete at the wanted length."""
        path = self.run / DONE
        return path.exists() and bool(json.loads(path.read_text(encoding="utf-8"))["length"] == length(self.wanted))

    def check(self) -> None:
        """Refuse a run with other settings, and one that is longer than wanted."""
        changed = difference(fixed_settings(self.had), fixed_settings(self.wanted))
        if not changed and (self.run / DONE).exists() and _is_shorter(self.wanted, self.had):
            changed = difference(_lengths(self.had), _lengths(self.wanted))
        if not changed:
            return
        raise TrainingError(
            f"{self.run}: was trained with other settings ({changed}); set another folder for the comparison, or "
            "delete this run and all others with old settings"
        )

    def search_as_wanted(self) -> bool:
        """Store the wanted decoding settings with the model; return whether they have changed."""
        calibrated = {name: getattr(self.had.decoding, name) for name in _CALIBRATED}
        decoding = replace(self.wanted.decoding, **calibrated)
        wanted = replace(self.had, decoding=decoding, endpoint=self.wanted.endpoint)
        if wanted == self.had:
            return False
        write_atomically(self.run / "model" / CONFIG, dump(wanted).encode())
        return True


def settings_of(run: Path) -> Config | None:
    """The settings of a run; None if it was not started."""
    path = run / "model" / CONFIG
    return load_config(path) if path.exists() else None


def length(config: Config) -> list[int]:
    """The settings that end a run: epochs and patience."""
    return [config.training.epochs, config.training.patience]


def searched(model: Path) -> dict[str, Any]:
    """The decoding settings that differ from the defaults, so that results remain valid when settings are added."""
    config, usual = load_config(model / CONFIG), {**asdict(DecodingConfig()), **asdict(EndpointConfig())}
    settings = {**asdict(config.decoding), **asdict(config.endpoint)}
    return {name: value for name, value in settings.items() if value != usual[name] and name not in _CALIBRATED}


def _lengths(config: Config) -> dict[str, Any]:
    return dict(zip(("training.epochs", "training.patience"), length(config), strict=True))


def _is_shorter(one: Config, other: Config) -> bool:
    pairs = zip(length(one), length(other), strict=True)
    return any((ours or math.inf) < (theirs or math.inf) for ours, theirs in pairs)  # a patience of 0 never ends
