"""What a stream may ask for when it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Hotwords: TypeAlias = Sequence[tuple[str, float]]  # phrases, each with its boost


@dataclass(frozen=True)
class Wishes:
    """What is left out is as the server has it."""

    model: str = ""  # the first
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the search
    hotwords: Hotwords = ()
    attention: bool = False  # to be told where the heads looked
