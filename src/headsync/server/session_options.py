"""Options that a client chooses for its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

BoostedPhrases: TypeAlias = Sequence[tuple[str, float]]  # phrases with their boosts


@dataclass(frozen=True)
class SessionOptions:
    """Options of one stream; the defaults are those of the server."""

    model: str = ""  # empty: the first model
    settings: Mapping[str, Any] = field(default_factory=dict)  # decoding settings
    hotwords: BoostedPhrases = ()
    attention: bool = False  # send attention events
    phrases: Sequence[str] = ()  # the only phrases; none: those of the server
