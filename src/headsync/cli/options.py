"""Options that several commands share, as groups: a command takes a group as one argument.

    @grouped
    def listen(search: SearchOptions, device: ...) -> None:

`grouped` replaces the argument by the fields of its dataclass, so that Typer sees each field as an option.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from headsync.config import HOTWORD_BOOST
from headsync.errors import ConfigError, DataError

EngineChoice: TypeAlias = Annotated[
    Literal["auto", "onnx", "torch"],
    typer.Option("--engine", help="Runtime of the network: ONNX Runtime, PyTorch, or the one that the model supports."),
]
ModelName: TypeAlias = Annotated[
    str | None, typer.Option("--model", help="Name of a shipped model, model folder, or NAME=FOLDER.")
]
ModelArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="Name of a shipped model, model folder, or NAME=FOLDER.")
]
UtteranceLimit: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Maximum number of utterances.")]
NormaliserChoice: TypeAlias = Annotated[
    Literal["none", "words", "english"],
    typer.Option(help="Normalise texts before counting errors; english is Whisper's normaliser."),
]


_option = functools.partial(typer.Option, rich_help_panel="Search (default: as stored with the model)")


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search; None means as stored with the model."""

    beam: Annotated[int | None, _option(min=1, help="Number of hypotheses in the search.")] = None
    ctc_weight: Annotated[
        float | None, _option(min=0.0, max=1.0, help="Weight of CTC in the search; 1 is CTC alone.")
    ] = None
    lm: Annotated[Path | None, _option("--lm", help="Language model: a folder or an ARPA file.")] = None
    lm_weight: Annotated[float | None, _option(min=0.0, help="Weight of the language model.")] = None
    lm_use: Annotated[
        Literal["fusion", "rescoring"] | None,
        _option(help="Score every step of the search with the language model, or its final hypotheses."),
    ] = None
    hotwords: Annotated[
        Path | None, _option(help='Text file of phrases to favour, one per line; a suffix " :3.0" sets the boost.')
    ] = None
    phrases: Annotated[
        Path | None, _option(help="Text file of the only allowed phrases, one per line; \\[unk] is other speech.")
    ] = None
    phrase: Annotated[list[str] | None, _option(help="One of the allowed phrases; repeatable.")] = None
    endpoint: Annotated[
        str | None, _option("--endpoint", help="When utterances end, in seconds: pause=1.2,length=20,silence=10.")
    ] = None
    engine: EngineChoice = "auto"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the search by their names in Python."""
        names = ("beam", "ctc_weight", "lm_weight", "lm_use")
        return {name: getattr(self, name) for name in names} | endpoint_settings(self.endpoint)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `load_recognizer`."""
        lists = {"hotwords": read_hotwords(self.hotwords), "phrases": self.phrase_list()}
        return {"engine": self.engine, "lm": self.lm, **lists, **self.settings}

    def load_options(self, **settings: Any) -> dict[str, Any]:
        """The fields of `LoadOptions` except the model; `settings` are further settings."""
        settings = {"engine": self.engine, **self.settings, **settings}
        lists = {"hotwords": tuple(read_hotwords(self.hotwords)), "phrases": tuple(self.phrase_list())}
        return {"lm": self.lm, "settings": tuple(settings.items()), **lists}

    def phrase_list(self) -> list[str]:
        """The phrases of the file and of the command line."""
        lines = [] if self.phrases is None else _read_lines(self.phrases, "phrases")
        return [line.strip() for _, line in lines] + (self.phrase or [])


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass arguments as options."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }
    expanded: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        expanded += _parameters(groups[name]) if name in groups else [parameter]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in expanded]
    run.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _parameters(group: Any) -> list[inspect.Parameter]:
    """The fields of a dataclass as parameters."""
    parameters = inspect.signature(group, eval_str=True).parameters
    factories = {field.name: field.default_factory for field in fields(group) if field.default_factory is not MISSING}
    return [each.replace(default=factories[name]()) if name in factories else each for name, each in parameters.items()]


_RULES = {"pause": "pause_seconds", "length": "longest_seconds", "silence": "silence_seconds"}


def endpoint_settings(rules: str | None) -> dict[str, Any]:
    """The settings of `pause=0.8,length=15,silence=5`."""
    settings: dict[str, Any] = {}
    for rule in (rules or "").split(",") if rules else ():
        name, _, value = rule.partition("=")
        try:
            settings[_RULES[name.strip()]] = seconds = float(value)
        except (KeyError, ValueError):
            known = ", ".join(f"{rule}=SECONDS" for rule in _RULES)
            raise ConfigError(f'--endpoint: "{rule}" is not a rule; write one or more of {known}') from None
        if not seconds > 0:
            raise ConfigError(f'--endpoint: "{rule}" must be more than 0 seconds')
    return {"whole_recording": False, **settings} if settings else {}


def read_hotwords(path: Path | None) -> list[tuple[str, float]]:
    """Phrases and their boosts, one per line; a boost follows a colon."""
    if path is None:
        return []
    return [_parse_hotword(line, f"{path}, line {number}") for number, line in _read_lines(path, "hotwords")]


def _read_lines(path: Path, what: str) -> list[tuple[int, str]]:
    """The lines of a text file that are not empty, with their numbers."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the {what} cannot be read ({error}); name a text file.") from None
    found = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError(f"{path}: the file contains no {what}; write one per line.")
    return found


def _parse_hotword(line: str, where: str) -> tuple[str, float]:
    phrase, colon, boost = line.partition(" :")
    try:
        return phrase.strip(), float(boost) if colon else HOTWORD_BOOST
    except ValueError:
        raise DataError(f"{where}: {boost.strip()!r} is not a boost; write a number after the colon.") from None
