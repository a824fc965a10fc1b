"""Types of the values in a comparison file.

Unlike recipes (`recipe.build`), it has lists, and tables with free keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headsync.errors import ConfigError, nearest


class ValueType(NamedTuple):
    """The type of a value: its description in messages, and a test."""

    description: str
    fits: Callable[[Any], bool]


def _list_of(item: ValueType, least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(item.fits, value))


_TEXT = ValueType("a text in quotes", lambda value: isinstance(value, str))
_COUNT = ValueType("a whole number, 0 or more", lambda value: type(value) is int and value >= 0)
_FLAG = ValueType("true or false", lambda value: isinstance(value, bool))
_SHARE = ValueType("a number above 0", lambda value: type(value) in (int, float) and value > 0)
_TABLE = ValueType("a table of settings", lambda value: isinstance(value, dict))
_TABLES = ValueType("tables, each under a line with the name in double brackets", _list_of(_TABLE))
_SEEDS = ValueType("whole numbers in brackets, such as [1, 2, 3]", _list_of(_COUNT, least=1))
_SHARES = ValueType("numbers above 0 in brackets, such as [1.0, 0.5]", _list_of(_SHARE, least=1))
_NAMES = ValueType('names of systems in brackets, such as ["DACS"]', _list_of(_TEXT))
VALUES = ValueType("values in brackets, such as [0.1, 0.3]", lambda value: isinstance(value, list) and len(value) > 0)
_MANIFESTS = ValueType(
    'a table of manifests, such as { test = "test.jsonl" }',
    lambda value: isinstance(value, dict) and all(map(_TEXT.fits, value.values())),
)

SYSTEM = {"name": _TEXT, "settings": _TABLE, "seeds": _SEEDS, "paper": _TEXT, "random_decoder": _FLAG}
CHOICE = {**SYSTEM, "of": _TEXT, "decoding": _TABLE}
LOADED = {"threshold": _SHARE, "lm": _TEXT}  # of `decoding`, in addition to the settings of that table of a recipe
SWEEP = {"systems": _NAMES, "shares": _SHARES}
FIGURE = {"systems": _NAMES}
COMPARISON = {
    "recipe": _TEXT,
    "folder": _TEXT,
    "tests": _MANIFESTS,
    "system": _TABLES,
    "choice": _TABLES,
    "encoder": _TABLE,
    "limit": _COUNT,
    "unit": _TEXT,
    "normalise": _TEXT,
    "align": _TEXT,
    "tune": _TABLE,
    "sweep": _TABLE,
    "figure": _TABLE,
    "title": _TEXT,
}


def check_values(tree: Mapping[str, Any], types: Mapping[str, ValueType], where: str, whole: str) -> None:
    """Check that every key is known and every value has the type of its key."""
    for key, value in tree.items():
        if key not in types:
            raise ConfigError(f"{where}: {key} is not part of a {whole}{nearest(key, types)}")
        if not types[key].fits(value):
            raise ConfigError(f"{where}: {key} = {value!r} must be {types[key].description}")


def check_present(tree: Mapping[str, Any], needed: Mapping[str, str], where: str) -> None:
    """Check that required keys are present; `needed` describes them."""
    for key, description in needed.items():
        if not tree.get(key):
            raise ConfigError(f"{where}: {key} is missing: {description}")
