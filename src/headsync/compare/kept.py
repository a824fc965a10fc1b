"""Runs that are there already: whether they are of the plan and the recipe as these are now.

A model folder keeps the settings of its run. What weights depend on must be the same, since training anew costs hours
and deleting is not ours to do; a run that is to be longer goes on; how a model is searched may change at any time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from headsync.config import Config, DecodingConfig
from headsync.errors import TrainingError
from headsync.folder import CONFIG
from headsync.recipe import dump, load_config
from headsync.tokens import Vocabulary
from headsync.train.course import FREE, fingerprint
from headsync.writing import write_atomically

DONE = "done.json"  # beside a model: its training has come to its end
TABLES = ("features", "network", "encoder", "decoder")  # that a fingerprint is of, beside data and training
ANY = Vocabulary("words", ("any",))  # of two fingerprints that are compared, both have this one
CALIBRATED = ("confidence_scale", "confidence_offset")  # by `headsync calibrate`; no table depends on them


@dataclass(frozen=True)
class Kept:
    """A run that has been begun: the settings that it had, and those that it is wanted with."""

    run: Path
    had: Config
    wanted: Config

    @property
    def is_done(self) -> bool:
        """Whether it has been trained to its end, and that is where it should be."""
        told = done_of(self.run)
        return told is not None and told.get("length", length(self.had)) == length(self.wanted)

    def check(self) -> None:
        """Refuse a run of other settings, and one that has gone on for longer than it should."""
        if fingerprint(self.had, ANY, TABLES) != fingerprint(self.wanted, ANY, TABLES):
            names = (name for name in _names(*TABLES, "data", "training") if name[1] not in (*FREE, "workers"))
        elif (self.run / DONE).exists() and _is_shorter(self.wanted, self.had):
            names = (("training", name) for name in ("epochs", "patience"))
        else:
            return
        raise TrainingError(
            f"{self.run}: was trained with other settings ({self._first_of(names)}); give the comparison another "
            "folder, or remove this one and all others that are no longer wanted"
        )

    def note_length(self) -> None:
        """Before a run goes on: how long the one was that is done, or half of the next would be taken for all of it."""
        if (told := done_of(self.run)) is not None:
            write_done(self.run, {"length": length(self.had), **told})

    def search_as_wanted(self) -> bool:
        """Store with the model how it is to be searched; returns whether that has changed."""
        calibrated = {name: getattr(self.had.decoding, name) for name in CALIBRATED}
        decoding = replace(self.wanted.decoding, **calibrated)
        if decoding == self.had.decoding:
            return False
        write_atomically(self.run / "model" / CONFIG, dump(replace(self.had, decoding=decoding)).encode())
        return True

    def _first_of(self, names: Iterator[tuple[str, str]]) -> str:
        for table, key in names:
            had, wanted = (getattr(getattr(config, table), key) for config in (self.had, self.wanted))
            if had != wanted:
                return f"{table}.{key} was {had!r} and is now {wanted!r}"
        raise AssertionError("some setting differs")


def settings_of(run: Path) -> Config | None:
    """The settings of a run, if it has been begun."""
    path = run / "model" / CONFIG
    return load_config(path) if path.exists() else None


def done_of(run: Path) -> dict[str, Any] | None:
    """What is told of a run that was trained to its end."""
    path = run / DONE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def write_done(run: Path, told: dict[str, Any]) -> None:
    """Tell that a run was trained to its end."""
    write_atomically(run / DONE, json.dumps(told, indent=1).encode())


def length(config: Config) -> list[int]:
    """What says when a run ends: the most epochs, and how many without a better dev loss."""
    return [config.training.epochs, config.training.patience]


def searched(model: Path) -> dict[str, Any]:
    """How a model is searched, as far as results depend on it.

    Only what differs from the defaults, so that a later version with more settings can take results as they are.
    """
    usual, decoding = asdict(DecodingConfig()), asdict(load_config(model / CONFIG).decoding)
    return {name: value for name, value in decoding.items() if value != usual[name] and name not in CALIBRATED}


def _is_shorter(one: Config, other: Config) -> bool:
    pairs = zip(length(one), length(other), strict=True)
    return any((ours or math.inf) < (theirs or math.inf) for ours, theirs in pairs)  # a patience of 0 never ends


def _names(*tables: str) -> Iterator[tuple[str, str]]:
    return ((table, f.name) for table in tables for f in fields(getattr(Config(), table)))
