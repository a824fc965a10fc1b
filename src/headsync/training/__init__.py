"""Training: `train` takes a recipe and writes a model folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

Say = Callable[[str], None]  # prints a line


def train(recipe: Path, overrides: Sequence[str] = (), say: Say = print) -> Path:
    """Train a recogniser or a language model, from the start or from its last checkpoint; returns the model folder."""
    from headsync.recipe import load_config
    from headsync.training import asr_task, lm_task
    from headsync.training.trainer import train_config

    config = load_config(recipe, overrides)
    return train_config(config, recipe, lm_task.start if config.kind == "lm" else asr_task.start, say)
