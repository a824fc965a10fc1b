"""Options that several commands share: how a model is searched. None means as stored with the model."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from headsync.config import HOTWORD_BOOST
from headsync.errors import ConfigError, DataError


class UnitName(Enum):
    """What errors are counted in."""

    words = "words"
    characters = "characters"


class EngineName(Enum):
    """What runs the network."""

    auto = "auto"
    onnx = "onnx"
    torch = "torch"


EngineChoice: TypeAlias = Annotated[
    EngineName,
    typer.Option("--engine", help="What runs the network: onnx (ONNX Runtime), torch (PyTorch) or auto."),
]
ModelName: TypeAlias = Annotated[
    str | None, typer.Option("--model", help="Name of a shipped model, or a model folder.")
]
Beam: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Hypotheses kept in the search.")]
CtcWeight: TypeAlias = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="Weight of CTC in the search; 1 is CTC alone.")
]
Lm: TypeAlias = Annotated[
    Path | None, typer.Option("--lm", help="A language model: its folder, or a file in the ARPA form.")
]
LmWeight: TypeAlias = Annotated[float | None, typer.Option(min=0.0, help="Weight of the language model.")]
Hotwords: TypeAlias = Annotated[
    Path | None, typer.Option(help="Phrases to listen for, one a line; ' :3.0' behind one sets its boost.")
]
EndpointRules: TypeAlias = Annotated[
    str | None,
    typer.Option("--endpoint", help="When utterances end, in seconds: pause=1.2,length=20,silence=10."),
]

RULES = {"pause": "trailing_seconds", "length": "longest_seconds", "silence": "silence_seconds"}


def endpoint_settings(rules: str | None) -> dict[str, Any]:
    """The decoding settings behind `pause=0.8,length=15,silence=5`."""
    settings: dict[str, Any] = {}
    for rule in (rules or "").split(",") if rules else ():
        name, _, value = rule.partition("=")
        try:
            settings[RULES[name.strip()]] = seconds = float(value)
        except (KeyError, ValueError):
            known = ", ".join(f"{rule}=SECONDS" for rule in RULES)
            raise ConfigError(f'--endpoint: "{rule}" is not a rule; write one or more of {known}') from None
        if not seconds > 0:
            raise ConfigError(f'--endpoint: "{rule}" must be more than 0 seconds')
    return settings


def read_hotwords(path: Path | None) -> list[tuple[str, float]]:
    """Phrases and their boosts, one a line; a boost stands behind a colon."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the hotwords cannot be read ({error}); name a text file.") from None
    found = [_hotword(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError(f"{path}: there are no hotwords in it; write one a line.")
    return found


def _hotword(line: str, where: str) -> tuple[str, float]:
    phrase, colon, boost = line.partition(" :")
    try:
        return phrase.strip(), float(boost) if colon else HOTWORD_BOOST
    except ValueError:
        raise DataError(f"{where}: {boost.strip()!r} is not a boost; write a number behind the colon.") from None
