"""Types of the values in a comparison file.

Unlike recipes (`recipe.build`), it has lists, and tables with free keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headsync.errors import ConfigError, nearest


class Kind(NamedTuple):
    """A type of value: its name in messages, and a test."""

    spoken: str
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0  # a bool is not a number


def _is_above_zero(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _are(fits: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    """A test for lists whose items pass a test."""
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def _are_manifests(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


TEXT = Kind("a text in quotes", _is_text)
COUNT = Kind("a whole number, 0 or more", _is_count)
SHARE = Kind("a number above 0", _is_above_zero)
TABLE = Kind("a table of settings", _is_table)
TABLES = Kind("tables, each under a line with the name in double brackets", _are(_is_table))
SEEDS = Kind("whole numbers in brackets, such as [1, 2, 3]", _are(_is_count, least=1))
SHARES = Kind("numbers above 0 in brackets, such as [1.0, 0.5]", _are(_is_above_zero, least=1))
NAMES = Kind('names of systems in brackets, such as ["DACS"]', _are(_is_text))
MANIFESTS = Kind('a table of manifests, such as { test = "test.jsonl" }', _are_manifests)

SYSTEM = {"name": TEXT, "settings": TABLE, "seeds": SEEDS, "paper": TEXT}
CHOICE = {**SYSTEM, "of": TEXT, "decoding": TABLE}
LOADED = {"threshold": SHARE, "lm": TEXT}  # of `decoding`, in addition to the settings of that table of a recipe
SWEEP = {"systems": NAMES, "shares": SHARES}
FIGURE = {"systems": NAMES}
COMPARISON = {
    "recipe": TEXT,
    "folder": TEXT,
    "tests": MANIFESTS,
    "system": TABLES,
    "choice": TABLES,
    "encoder": TABLE,
    "limit": COUNT,
    "unit": TEXT,
    "sweep": TABLE,
    "figure": TABLE,
    "title": TEXT,
}


def check_values(tree: Mapping[str, Any], kinds: Mapping[str, Kind], where: str, whole: str) -> None:
    """Check that every key is known and every value has the type of its key."""
    for key, value in tree.items():
        if key not in kinds:
            raise ConfigError(f"{where}: {key} is not part of a {whole}{nearest(key, kinds)}")
        if not kinds[key].fits(value):
            raise ConfigError(f"{where}: {key} = {value!r} must be {kinds[key].spoken}")


def check_present(tree: Mapping[str, Any], needed: Mapping[str, str], where: str) -> None:
    """Check that required keys are present; `needed` describes them."""
    for key, told in needed.items():
        if not tree.get(key):
            raise ConfigError(f"{where}: {key} is missing, {told}")
