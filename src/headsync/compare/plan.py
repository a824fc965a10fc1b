"""What to compare, read from a TOML file: one recipe, and the systems that differ from it in a few settings.

    recipe = "digits-recipe.toml"          # beside this file
    folder = "runs/tables/digits"          # where runs and tables go
    tests = { test = "runs/data/digits/test.jsonl" }
    unit = "words"                         # or "characters": what errors are counted in

    [encoder]                              # settings of an encoder that is trained first and shared; may be absent
    "training.ctc_weight" = 1

    [[system]]
    name = "HS-DACS"
    seeds = [1, 2, 3]
    settings = { "decoder.attention" = "hs-dacs" }
    paper = "6.8"

A `[[choice]]` is a system with other settings, to be trained, or other `decoding`, which needs no training. `[sweep]`
names the systems whose threshold is lowered, `[figure]` those whose heads are drawn.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from headsync.errors import ConfigError
from headsync.measure.errors import Unit
from headsync.recipe import load_config

ENCODER = "encoder"  # the name of the shared encoder's folder

Settings = Mapping[str, Any]  # "table.key" -> value


@dataclass(frozen=True)
class System:
    """A row of a table: the recipe with these settings in place of its own."""

    name: str
    settings: Settings = field(default_factory=dict)
    seeds: tuple[int, ...] = (1,)
    paper: str = ""  # the paper's figure for this system
    of: str = ""  # a choice: the system that it is a variant of
    decoding: Settings = field(default_factory=dict)  # a choice: settings of recognition, not of training


@dataclass(frozen=True)
class Comparison:
    """All that a comparison file says."""

    recipe: Path
    folder: Path
    tests: Mapping[str, Path]
    systems: tuple[System, ...]
    choices: tuple[System, ...] = ()
    encoder: Settings | None = None
    limit: int = 0  # utterances of each test; 0: all
    unit: Unit = "words"  # or characters: what errors are counted in
    sweep: tuple[str, ...] = ()  # systems whose threshold is lowered
    shares: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)  # of the full threshold
    figure: tuple[str, ...] = ()  # systems whose heads are drawn
    title: str = ""

    def system(self, name: str) -> System:
        """The system of that name."""
        return next(system for system in self.systems if system.name == name)

    def settings_of(self, choice: System) -> Settings:
        """What a choice is trained with: the settings of its system, and its own."""
        return {**self.system(choice.of).settings, **choice.settings}


def read_plan(path: Path) -> Comparison:
    """Read a comparison file; every name in it is checked before anything is trained."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; the ones that come along are in recipes/tables/") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    known = {"recipe", "folder", "tests", "system", "choice", "encoder", "limit", "unit", "sweep", "figure", "title"}
    if unknown := sorted(set(tree) - known):
        raise ConfigError(f"{path}: {unknown[0]} is not part of a comparison; known here: {', '.join(sorted(known))}")
    if missing := sorted({"recipe", "folder", "tests", "system"} - set(tree)):
        raise ConfigError(f"{path}: {missing[0]} is missing")
    systems = tuple(_system(entry, path) for entry in tree["system"])
    sweep = tree.get("sweep", {})
    plan = Comparison(
        recipe=path.parent / tree["recipe"],
        folder=Path(tree["folder"]),
        tests={name: Path(manifest) for name, manifest in tree["tests"].items()},
        systems=systems,
        choices=tuple(_system(entry, path) for entry in tree.get("choice", ())),
        encoder=tree.get("encoder"),
        limit=tree.get("limit", 0),
        unit=tree.get("unit", "words"),
        sweep=tuple(sweep.get("systems", ())),
        shares=tuple(map(float, sweep.get("shares", Comparison.shares))),
        figure=tuple(tree.get("figure", {}).get("systems", ())),
        title=tree.get("title", path.stem),
    )
    _check(plan, path)
    return plan


def overrides(settings: Settings) -> list[str]:
    """Settings as a recipe takes them on the command line."""
    return [f"{name}={_toml(value)}" for name, value in settings.items()]


def _system(entry: dict[str, Any], path: Path) -> System:
    known = {f.name for f in fields(System)}
    if unknown := sorted(set(entry) - known):
        raise ConfigError(f"{path}: {unknown[0]} is not part of a system; known here: {', '.join(sorted(known))}")
    if "name" not in entry:
        raise ConfigError(f"{path}: a system needs a name")
    return System(**{**entry, "seeds": tuple(entry.get("seeds", (1,)))})


def _check(plan: Comparison, path: Path) -> None:
    if plan.unit not in get_args(Unit):
        raise ConfigError(f'{path}: unit = "{plan.unit}" is not known; known here: {", ".join(get_args(Unit))}')
    names = [system.name for system in (*plan.systems, *plan.choices)]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f'{path}: two systems have the name "{doubled[0]}"')
    wanted = [*plan.sweep, *plan.figure, *(choice.of for choice in plan.choices)]
    if lost := [name for name in wanted if name not in [system.name for system in plan.systems]]:
        raise ConfigError(f'{path}: "{lost[0]}" is not the name of a system; there are {", ".join(names)}')
    for settings in [plan.encoder or {}, *(s.settings for s in plan.systems), *map(plan.settings_of, plan.choices)]:
        load_config(plan.recipe, overrides(settings))


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
