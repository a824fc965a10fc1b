"""The course of a training run, whatever it trains: epochs, checkpoints, the best weights, and when to stop.

Nothing random is carried along: the batches of an epoch follow from seed and epoch, dropout from seed and update. So a
checkpoint needs only weights, optimiser and a few counters, and a resumed run repeats an undisturbed one bit by bit.
`loop.py` and `lm.py` say what an update and a measurement are. Where several processes share a run, all of them follow
its course, and the first one writes.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from headsync.config import Config, TrainingConfig
from headsync.errors import ConfigError
from headsync.folder import CARD, WEIGHTS
from headsync.recipe import load_config
from headsync.tokens import Vocabulary
from headsync.train.checkpoint import Optimiser, Progress, average, load_checkpoint, save_checkpoint, save_weights
from headsync.train.descent import Descent
from headsync.train.memory import keep_memory
from headsync.train.plan import Split
from headsync.train.ranks import Ranks, joined
from headsync.train.report import Mute, Report
from headsync.writing import write_atomically

CHECKPOINT = "checkpoint.safetensors"
FREE = ("epochs", "patience", "threads", "checkpoint_seconds", "folder", "device", "accumulate", "recompute")


class Result(Protocol):
    """What measuring brings: at least a loss, by which epochs are compared."""

    @property
    def loss(self) -> float: ...


R = TypeVar("R", bound=Result)
Say = Callable[[str], None]


@dataclass
class Course(ABC, Generic[R]):
    """One training run: what it learns, and where it is."""

    config: Config
    folder: Path
    vocabulary: Vocabulary
    model: nn.Module
    optimiser: Optimiser
    progress: Progress
    ranks: Ranks
    settled: bool = field(default=True, init=False)  # False while weights, counters and log may tell of different ones

    def __post_init__(self) -> None:
        self.descent = Descent(self.model, self.optimiser, self.config.training, self.ranks)

    @abstractmethod
    def updates(self, report: Report) -> Iterator[None]:
        """The rest of the present epoch, one update after the other."""

    @abstractmethod
    def measure(self) -> R:
        """How good the weights are now."""

    @abstractmethod
    def tell(self, report: Report, result: R) -> None:
        """Tell of an epoch that was measured."""

    @abstractmethod
    def card(self, result: R) -> str:
        """The model card."""

    def report(self) -> Report:
        """What tells of the run, in the first of its processes; the others keep quiet."""
        return Report(self.folder, self.config, self.progress) if self.ranks.first else Mute(self.config)

    def rivals(self) -> list[tuple[float, int]]:
        """The losses and numbers of earlier epochs that this one is compared with."""
        return self.progress.best

    def may_stop(self) -> bool:
        """Whether a run may run out of patience yet."""
        return True

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def split(self) -> Split:
        return Split(self.ranks.rank, self.ranks.count, self.config.training.accumulate)

    def epoch_weights(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:03d}.safetensors"


def train_by(
    recipe: Path, overrides: Sequence[str], say: Say, start: Callable[[Config, Say, Ranks], Course[Any]]
) -> Path:
    """Train what `start` makes of a recipe, alone or as one of several processes; returns the model folder."""
    config = load_config(recipe, overrides)
    torch.set_num_threads(config.training.threads)
    keep_memory()
    with joined(config.training.device) as ranks:
        say = say if ranks.first else _nothing
        try:
            run = start(config, say, ranks)
        except ConfigError as error:
            raise ConfigError(f"{recipe}: {error}") from None
        return follow(run, run.report(), say)


def _nothing(_: str) -> None:
    """Only the first process of a run talks."""


def follow(run: Course[Any], report: Report, say: Say) -> Path:
    """Train to the end, or until Ctrl-C; returns the model folder."""
    with report:
        try:
            while not is_over(run):
                train_epoch(run, report)
                finish_epoch(run, report)
        except KeyboardInterrupt:
            if run.settled:
                keep(run, report)
            say("stopped; the same command goes on from the last checkpoint")
            raise
    return run.model_folder


def resume(run: Course[Any], say: Say) -> None:
    """Take up the last checkpoint, if there is one."""
    if not run.checkpoint.exists():
        return
    run.progress = load_checkpoint(run.checkpoint, run.model, run.optimiser, run.progress.fingerprint)
    run.descent.resume(run.progress)
    if is_over(run):
        say(f"this run is done: its model is in {run.model_folder}; with more epochs or patience it would go on")
    else:
        say(f"going on after update {run.progress.update}, epoch {run.progress.epoch + 1}")


def train_epoch(run: Course[Any], report: Report) -> None:
    """The rest of the present epoch, with a checkpoint now and then."""
    saved = time.monotonic()
    run.model.train()
    for _ in run.updates(report):
        run.settled = True
        if time.monotonic() - saved > run.config.training.checkpoint_seconds:
            keep(run, report)
            saved = time.monotonic()


def finish_epoch(run: Course[Any], report: Report) -> None:
    """Measure, keep the weights if they are among the best, write the averaged model."""
    progress, before = run.progress, run.progress.best
    result = run.measure()
    run.settled = False
    rivals = run.rivals()
    progress.epoch, progress.batch = progress.epoch + 1, 0
    progress.best = sorted([*rivals, (result.loss, progress.epoch)])[: run.config.training.average]
    if run.ranks.first:
        save_weights(run.epoch_weights(progress.epoch), run.model.state_dict())
        write_model(run, result)
    run.tell(report, result)
    keep(run, report)
    run.settled = True
    if run.ranks.first:
        for _, epoch in {*before, (result.loss, progress.epoch)} - set(progress.best):
            run.epoch_weights(epoch).unlink(missing_ok=True)


def write_model(run: Course[Any], result: Result) -> None:
    """The mean of the best epochs so far, as a model folder that can be used at once."""
    write_atomically(run.model_folder / CARD, run.card(result).encode())
    weights = average([run.epoch_weights(epoch) for _, epoch in run.progress.best])
    save_weights(run.model_folder / WEIGHTS, weights)


def keep(run: Course[Any], report: Report) -> None:
    """Write a checkpoint, the log before it: lines too many are cut back when a run goes on, missing ones stay away."""
    if run.ranks.first:
        report.flush()
        run.descent.note(run.progress)
        save_checkpoint(run.checkpoint, run.model, run.optimiser, run.progress)


def is_over(run: Course[Any]) -> bool:
    """Whether there is nothing left to train."""
    return run.progress.epoch >= run.config.training.epochs or out_of_patience(run)


def out_of_patience(run: Course[Any]) -> bool:
    """Whether the dev loss has not become better for too many epochs."""
    patience, best = run.config.training.patience, run.progress.best
    return bool(patience and best) and run.may_stop() and run.progress.epoch - best[0][1] >= patience


def part_of_pass(rows: Sequence[list[int]], part: int, parts: int) -> list[list[int]]:
    """The batches of an epoch that is an even part of a pass; where there are fewer batches than parts, one of them."""
    if len(rows) < parts:
        return [rows[part % len(rows)]]
    return list(rows[part * len(rows) // parts : (part + 1) * len(rows) // parts])


def fingerprint(config: Config, vocabulary: Vocabulary, tables: Sequence[str]) -> str:
    """What must stay the same for a checkpoint to be taken up; the length of the run and the like may change.

    Only what differs from the defaults counts, so that a later version with more settings can go on with the run.
    """
    usual = TrainingConfig()
    free = replace(config.training, **{name: getattr(usual, name) for name in FREE})
    parts = (*(getattr(config, table) for table in tables), replace(config.data, workers=1), free)
    told = [{k: v for k, v in asdict(part).items() if v != asdict(type(part)())[k]} for part in parts]
    return hashlib.sha256(json.dumps([told, vocabulary.tokens]).encode()).hexdigest()[:16]
