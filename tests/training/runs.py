"""Runs of training, disturbed or not, and what stands in their folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from headsync.errors import HeadsyncError
from headsync.model_folder import WEIGHTS
from headsync.training import train


def quietly(recipe: Path, folder: Path, *overrides: str) -> Path:
    return train(recipe, [f"training.folder={folder}", *overrides], say=lambda _: None)


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> bytes:
    return (folder / "model" / WEIGHTS).read_bytes()


def updates_kept(folder: Path) -> int:
    """How far the checkpoint is; it is replaced in one move, so that it can be read at any time."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        return int(json.loads(file.metadata()["progress"])["update"])


def assert_complains(kind: type[HeadsyncError], match: str, recipe: Path, folder: Path, *overrides: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        quietly(recipe, folder, *overrides)
    assert "\n" not in str(caught.value)


class Interrupts:
    """Ctrl-C at the n-th call of something."""

    def __init__(self, original: Callable[..., Any], at: int, after: bool) -> None:
        self.original, self.at, self.after, self.calls = original, at, after, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise KeyboardInterrupt
        value = self.original(*arguments, **options)
        if self.calls == self.at:
            raise KeyboardInterrupt
        return value
