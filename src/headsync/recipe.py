"""Reading and writing of recipes.

A recipe is a TOML file whose tables are the fields of `Config`. `extends = "base.toml"` before the tables names another
recipe, relative to this one; this recipe overrides its settings. Errors name the file, the key, the value and the
allowed values.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

from headsync._parse import parse_toml
from headsync.config import TABLES_OF_KIND, Config
from headsync.errors import ConfigError, nearest

T = TypeVar("T")
NONE = "none"  # TOML has no null


def load_config(path: Path, overrides: typing.Sequence[str] = ()) -> Config:
    """Read a recipe; `overrides` are `table.key=value` with TOML values (a bare word is a string)."""
    tree = _read_recipe(path, ())
    for override in overrides:
        _override(tree, override)
    return build(Config, tree, str(path))


def _read_recipe(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    """The tables of a recipe merged, key by key, into those of the recipe that it extends."""
    missing = f"no such recipe; {extended_by[-1]} extends it" if extended_by else "no such recipe; see recipes/"
    tree = read_toml(path, missing)
    if "extends" not in tree:
        return tree
    base, chain = tree.pop("extends"), (*extended_by, path)
    if not isinstance(base, str) or "\0" in base:
        raise ConfigError(f"{path}: extends = {base!r} must be the path of a recipe, in quotes")
    if (path.parent / base).resolve() in {one.resolve() for one in chain}:
        names = " -> ".join(str(one) for one in (*chain, path.parent / base))
        raise ConfigError(f"{path}: extends = {base!r} makes a cycle: {names}")
    merged = _read_recipe(path.parent / base, chain)
    for table, values in tree.items():
        both = isinstance(values, dict) and isinstance(merged.get(table), dict)
        merged[table] = {**merged[table], **values} if both else values
    return merged


def read_toml(path: Path, missing: str) -> dict[str, Any]:
    """The content of a TOML file; `missing` completes the error if there is no such file."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: {missing}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def build(cls: type[T], tree: dict[str, Any], where: str, prefix: str = "") -> T:
    """A dataclass from a nested dict; unknown keys and values of another type are errors."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in hints:
            raise ConfigError(f"{where}: {prefix}{key} is not a setting{nearest(key, hints)}")
        values[key] = _convert(hints[key], value, where, prefix + key)
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {prefix}{error}") from None


def dump(config: Config) -> str:
    """The TOML text of a config; `build` restores the same config from it."""
    lines = [f"kind = {to_toml(config.kind)}", ""]
    for name in TABLES_OF_KIND[config.kind]:
        lines.append(f"[{name}]")
        values = getattr(config, name)
        lines += [f"{f.name} = {to_toml(getattr(values, f.name))}" for f in dataclasses.fields(values)]
        lines.append("")
    return "\n".join(lines)


def _override(tree: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    if not equals or name.count(".") != 1:
        raise ConfigError(f'"{text}" is not an override; write table.key=value, for example training.seed=2')
    table, key = name.strip().split(".")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value.strip()
    inner = tree.setdefault(table, {})
    if not isinstance(inner, dict):
        raise ConfigError(f'"{text}": {table} is not a table of settings')
    inner[key] = parsed


def _convert(hint: Any, value: Any, where: str, name: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: {name} must be a table of settings, not {value!r}")
        return build(hint, value, where, name + ".")
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            choices = ", ".join(f'"{a}"' for a in allowed)
            raise ConfigError(f"{where}: {name} = {value!r} is not known; it can be {choices}")
        return value
    if hint == float | None:
        return None if value == NONE else _convert(float, value, where, name)
    if hint is float and type(value) is int:
        return to_float(value, f"{where}: {name}")
    assert isinstance(hint, type)
    if type(value) is not hint:
        raise ConfigError(f"{where}: {name} = {value!r} must be {_DESCRIPTIONS[hint]}")
    return value


def to_float(value: float, name: str) -> float:
    """Convert a number to float; integers in TOML and JSON have no limit."""
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{name} is too large a number; the largest is {sys.float_info.max:.0e}") from None


_DESCRIPTIONS = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}


def to_toml(value: Any) -> str:
    """A setting as a TOML value; a text is quoted, so that one such as "0.9" remains a text."""
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, float):
        return repr(value)  # repr keeps inf, nan and exponents in a form that TOML reads
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML requires an escape
