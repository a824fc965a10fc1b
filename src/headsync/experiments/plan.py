"""The comparison file: a recipe, and systems that differ from it in some settings.

    recipe = "digits-recipe.toml"          # beside this file
    folder = "runs/tables/digits"          # for runs and tables
    tests = { test = "runs/data/digits/test.jsonl" }
    unit = "words"                         # or "characters": unit of errors

    [encoder]                              # optional: settings of a shared encoder, which is trained first
    "training.ctc_weight" = 1

    [[system]]
    name = "HS-DACS"
    seeds = [1, 2, 3]
    settings = { "decoder.attention" = "hs-dacs" }
    paper = "6.8"

A `[[choice]]` is a variant of a system with other `settings`, which is trained, or other `decoding` (settings of that
table of a recipe, `threshold` or `lm`), which is not. With `random_decoder = true` a system or choice starts from the
encoder and its CTC alone. `[tune]` lists values of decoding settings, from which each
system gets those with the lowest error rate on the first test. `[sweep]` names the systems to evaluate with lower
thresholds, `[figure]` those whose heads are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

from headsync.attention import mechanism_of
from headsync.config import Config
from headsync.errors import ConfigError, nearest
from headsync.evaluation.alignment import ALIGNERS
from headsync.evaluation.error_rate import Unit
from headsync.evaluation.normalise import Normalisation
from headsync.recipe import load_config, read_toml, to_toml
from headsync.recognizer import changed_settings

ENCODER = "encoder"  # the name of the shared encoder's folder

_NEEDED = {
    "recipe": "the recipe that all systems share",
    "folder": "the folder for runs and tables",
    "tests": "the test manifests",
    "system": "the systems to compare",
}

Settings = Mapping[str, Any]  # "table.key" -> value


class _ValueType(NamedTuple):
    description: str
    fits: Callable[[Any], bool]


def _list_of(item: _ValueType, least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(item.fits, value))


_TEXT = _ValueType("a text in quotes", lambda value: isinstance(value, str))
_COUNT = _ValueType("a whole number, 0 or more", lambda value: type(value) is int and value >= 0)
_FLAG = _ValueType("true or false", lambda value: isinstance(value, bool))
_SHARE = _ValueType("a number above 0", lambda value: type(value) in (int, float) and value > 0)
_TABLE = _ValueType("a table of settings", lambda value: isinstance(value, dict))
_TABLES = _ValueType("tables, each under a line with the name in double brackets", _list_of(_TABLE))
_SEEDS = _ValueType("whole numbers in brackets, such as [1, 2, 3]", _list_of(_COUNT, least=1))
_SHARES = _ValueType("numbers above 0 in brackets, such as [1.0, 0.5]", _list_of(_SHARE, least=1))
_NAMES = _ValueType('names of systems in brackets, such as ["DACS"]', _list_of(_TEXT))
_VALUES = _ValueType("values in brackets, such as [0.1, 0.3]", lambda value: isinstance(value, list) and len(value) > 0)
_MANIFESTS = _ValueType(
    'a table of manifests, such as { test = "test.jsonl" }',
    lambda value: isinstance(value, dict) and all(map(_TEXT.fits, value.values())),
)

_SYSTEM = {"name": _TEXT, "settings": _TABLE, "seeds": _SEEDS, "paper": _TEXT, "random_decoder": _FLAG}
_CHOICE = {**_SYSTEM, "of": _TEXT, "decoding": _TABLE}
_LOADED = {"threshold": _SHARE, "lm": _TEXT}  # of `decoding`, in addition to the settings of that table of a recipe
_SWEEP = {"systems": _NAMES, "shares": _SHARES}
_FIGURE = {"systems": _NAMES}
_COMPARISON = {
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


@dataclass(frozen=True)
class System:
    """A row of a table: the recipe with these settings."""

    name: str
    settings: Settings = field(default_factory=dict)
    seeds: tuple[int, ...] = (1,)
    paper: str = ""  # the paper's figure for this system
    of: str = ""  # a choice: the system that it is a variant of
    decoding: Settings = field(default_factory=dict)  # a choice: settings of recognition, not of training
    random_decoder: bool = False  # only the encoder and its CTC are those of the shared encoder

    @property
    def is_trained(self) -> bool:
        """Whether it is trained separately."""
        return not self.of or bool(self.settings) or self.random_decoder


class Training(NamedTuple):
    name: str
    settings: Settings
    seed: int = 1
    random_decoder: bool = False


@dataclass(frozen=True)
class Comparison:
    recipe: Path
    folder: Path
    tests: Mapping[str, Path]
    systems: tuple[System, ...]
    choices: tuple[System, ...] = ()
    encoder: Settings | None = None
    limit: int = 0  # utterances of each test; 0: all
    unit: Unit = "words"  # unit of errors
    normalise: Normalisation = "none"  # of texts before errors are counted
    align: str = ""  # an aligner of `evaluation.alignment` for word ends; "": the CTC of the shared encoder
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values to choose from, by decoding setting
    sweep: tuple[str, ...] = ()  # systems to evaluate with lower thresholds
    shares: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)  # of the full threshold
    figure: tuple[str, ...] = ()  # systems whose heads are drawn
    title: str = ""

    def system(self, name: str) -> System:
        return next(system for system in self.systems if system.name == name)

    def settings_of(self, choice: System) -> Settings:
        """The settings of a choice: those of its system, and its own."""
        return {**self.system(choice.of).settings, **choice.settings}

    def trainings(self, system: System, seeds: Sequence[int] | None = None) -> list[Training]:
        """The models of a system or choice; a choice without settings uses the first model of its system."""
        if not system.is_trained:
            return self.trainings(self.system(system.of), seeds)[:1]
        settings = self.settings_of(system) if system.of else system.settings
        return [Training(system.name, settings, seed, system.random_decoder) for seed in seeds or system.seeds]


def read_plan(path: Path) -> Comparison:
    """Read a comparison file and check every name in it."""
    tree = _tree(path)
    sweep, figure = tree.get("sweep", {}), tree.get("figure", {})
    unchanged = ("encoder", "limit", "unit", "normalise", "align", "tune")
    plan = Comparison(
        recipe=path.parent / tree["recipe"],
        folder=Path(tree["folder"]),
        tests={name: Path(manifest) for name, manifest in tree["tests"].items()},
        systems=tuple(_system(entry, "system", path) for entry in tree["system"]),
        choices=tuple(_system(entry, "choice", path) for entry in tree.get("choice", ())),
        sweep=tuple(sweep.get("systems", ())),
        shares=tuple(map(float, sweep.get("shares", Comparison.shares))),
        figure=tuple(figure.get("systems", ())),
        title=tree.get("title", path.stem),
        **{name: tree[name] for name in unchanged if name in tree},
    )
    _check_names(plan, path)
    _check_settings(plan, path)
    return plan


def overrides(settings: Settings) -> list[str]:
    """Settings as command-line overrides of a recipe."""
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    return [f"{name}={to_toml(value)}" for name, value in plain.items()]


def _tree(path: Path) -> dict[str, Any]:
    """The content of the file, with checked types."""
    tree = read_toml(path, "no such comparison file; see recipes/tables/")
    _check_values(tree, _COMPARISON, str(path), "comparison")
    _check_present(tree, _NEEDED, str(path))
    _check_values(tree.get("sweep", {}), _SWEEP, f"{path}: [sweep]", "sweep")
    _check_values(tree.get("figure", {}), _FIGURE, f"{path}: [figure]", "figure")
    tune = tree.get("tune", {})
    _check_values(tune, dict.fromkeys(tune, _VALUES), f"{path}: [tune]", "tune")
    return tree


def _system(entry: dict[str, Any], kind: str, path: Path) -> System:
    if not entry.get("name"):
        raise ConfigError(f"{path}: a {kind} requires a name")
    where = f'{path}: {kind} "{entry["name"]}"'
    _check_values(entry, _CHOICE if kind == "choice" else _SYSTEM, where, kind)
    if kind == "choice":
        _check_present(entry, {"of": "the name of the system that it is a variant of"}, where)
    return System(**{**entry, "seeds": tuple(entry.get("seeds", (1,)))})


def _check_names(plan: Comparison, path: Path) -> None:
    known_values = {"unit": get_args(Unit), "normalise": get_args(Normalisation), "align": ("", *ALIGNERS)}
    for key, values in known_values.items():
        if (value := getattr(plan, key)) not in values:
            raise ConfigError(f'{path}: {key} = "{value}" is not known; known here: {", ".join(filter(None, values))}')
    names = [system.name for system in (*plan.systems, *plan.choices)]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f'{path}: two systems have the name "{doubled[0]}"')
    if plan.encoder is not None and ENCODER in names:
        raise ConfigError(f'{path}: "{ENCODER}" is the name of the shared encoder; rename the system')
    if plan.encoder is None and any(system.random_decoder for system in (*plan.systems, *plan.choices)):
        raise ConfigError(f"{path}: random_decoder requires [encoder]; every decoder is random without it")
    known = [system.name for system in plan.systems]
    wanted = [*plan.sweep, *plan.figure, *(choice.of for choice in plan.choices)]
    if lost := [name for name in wanted if name not in known]:
        raise ConfigError(f'{path}: "{lost[0]}" is not the name of a system; known here: {", ".join(known)}')


def _check_settings(plan: Comparison, path: Path) -> None:
    if not plan.recipe.exists():
        raise ConfigError(f"{path}: recipe: there is no {plan.recipe}; paths are relative to the comparison file")
    if plan.encoder is not None:
        with _located(f"{path}: [encoder]"):
            _config(plan, plan.encoder)
    for system in (*plan.systems, *plan.choices):
        where = f'{path}: "{system.name}"'
        with _located(where):
            config = _config(plan, plan.trainings(system)[0].settings)
        _check_decoding(system.decoding, config, where)
    for name, values in plan.tune.items():
        for value in values:
            _check_decoding({name: value}, _config(plan, {}), f"{path}: [tune]")


def _config(plan: Comparison, settings: Settings) -> Config:
    """The recipe with these settings; an error if it cannot be trained."""
    config = load_config(plan.recipe, overrides(settings))
    if config.kind != "recogniser":
        raise ConfigError(f"{plan.recipe}: trains a language model; a comparison requires the recipe of a recogniser")
    mechanism_of(config.decoder)
    return config


def _check_decoding(settings: Settings, config: Config, where: str) -> None:
    """Check the arguments of `Recognizer.load`; the existence of language models is checked before training."""
    _check_values({key: settings[key] for key in _LOADED if key in settings}, _LOADED, f"{where}: decoding", "choice")
    given = {key: value for key, value in settings.items() if key not in _LOADED}
    decoding, _ = changed_settings(config.decoding, config.endpoint, given, where, "decoding.")
    if "lm" in settings and not decoding.lm_weight:
        raise ConfigError(f"{where}: decoding.lm requires decoding.lm_weight, for example 0.5")


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Add the place in the comparison file to errors in settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_values(tree: Mapping[str, Any], types: Mapping[str, _ValueType], where: str, whole: str) -> None:
    """Check that every key is known and every value has the type of its key."""
    for key, value in tree.items():
        if key not in types:
            raise ConfigError(f"{where}: {key} is not part of a {whole}{nearest(key, types)}")
        if not types[key].fits(value):
            raise ConfigError(f"{where}: {key} = {value!r} must be {types[key].description}")


def _check_present(tree: Mapping[str, Any], needed: Mapping[str, str], where: str) -> None:
    """Check that required keys are present; `needed` describes them."""
    for key, description in needed.items():
        if not tree.get(key):
            raise ConfigError(f"{where}: {key} is missing: {description}")
