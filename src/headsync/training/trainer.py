"""The training loop of recognisers and language models.

A `Task` provides batches, loss and evaluation; a `Trainer` makes updates, evaluates epochs, writes checkpoints, and
averages the weights of the best or the last epochs. A run has no random state: batches follow from seed and epoch,
dropout from seed and update. A checkpoint therefore holds weights, optimiser state and a few counters, and a resumed
run ends with bit-identical weights. If several processes share a run, the first one writes.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from headsync._atomic_write import write_atomically
from headsync.config import Config
from headsync.errors import ConfigError
from headsync.model_folder import CARD, WEIGHTS, checksummed
from headsync.text.vocabulary import Vocabulary
from headsync.training import Say
from headsync.training.allocator import keep_memory
from headsync.training.bucketing import Share, Split
from headsync.training.checkpoint import (
    Optimiser,
    TrainingProgress,
    average,
    check_same,
    fixed_settings,
    load_checkpoint,
    replace_damaged,
    save_checkpoint,
    save_weights,
)
from headsync.training.distributed import Ranks, joined
from headsync.training.losses import Losses, merged
from headsync.training.optimisation import Updater
from headsync.training.report import Report, Style

CHECKPOINT, MODEL = "checkpoint.safetensors", "model"


class Result(Protocol):
    """An evaluation on the development set: a named tuple with at least a loss."""

    @property
    def loss(self) -> float: ...


P = TypeVar("P")  # a part of a batch
R = TypeVar("R", bound=Result)


class Task(ABC, Generic[P, R]):
    """A network, the data it learns from, and how it is evaluated."""

    config: Config
    vocabulary: Vocabulary
    model: nn.Module
    optimiser: Optimiser
    style: Style
    remedy: str  # for a gradient that is not finite

    @abstractmethod
    def batches(self, progress: TrainingProgress, split: Split) -> tuple[int, Iterator[Share[P]]]:
        """The number of batches of the current epoch, and those that are left to do."""

    @abstractmethod
    def rate(self, progress: TrainingProgress) -> float:
        """The learning rate of the next update."""

    @abstractmethod
    def loss(self, network: nn.Module, part: P, update: int) -> Losses:
        """The loss of a part of a batch; `network` is the model, or the model distributed over processes."""

    @abstractmethod
    def evaluate(self, update: int, ranks: Ranks) -> R:
        """Evaluate the weights after this update on the development set."""

    @abstractmethod
    def card(self, progress: TrainingProgress, result: R) -> str:
        """The text of the model card."""

    @abstractmethod
    def next_command(self, model: Path) -> str:
        """A command to try the trained model with."""

    def score(self, result: R) -> float:
        """The score by which epochs are compared; the smallest is the best."""
        return result.loss

    def candidates(self, progress: TrainingProgress) -> list[tuple[float, int]]:
        """Scores and numbers of the earlier epochs that the current epoch is compared with."""
        return progress.best

    def may_stop(self, progress: TrainingProgress) -> bool:
        """Whether patience may end the run."""
        return True


class Trainer(Generic[P, R]):
    """A run: a task, its progress, and its folder."""

    def __init__(self, task: Task[P, R], ranks: Ranks, say: Say) -> None:
        self.task, self.ranks, self.say = task, ranks, say
        self.settings = task.config.training
        self.folder = Path(self.settings.folder)
        self.model_folder, self.checkpoint = self.folder / MODEL, self.folder / CHECKPOINT
        self.progress = TrainingProgress(settings=fixed_settings(task.config, task.vocabulary))
        self.updater = Updater(task.model, task.optimiser, self.settings, ranks)
        self.consistent = True  # False while weights, counters and log may be of different updates
        self._resume()

    def train(self) -> Path:
        """Train to the end, or until Ctrl-C; returns the model folder."""
        with self._report() as report:
            try:
                while not self.is_over():
                    self.train_epoch(report)
                    self.finish_epoch(self.evaluate(), report)
            except KeyboardInterrupt:
                if self.consistent:
                    self.save(report)
                self.say("stopped; the same command resumes from the last checkpoint")
                raise
        self.say(f"model: {self.model_folder}")
        self.say(f"next:  {self.task.next_command(self.model_folder)}")
        return self.model_folder

    def train_epoch(self, report: Report | None) -> None:
        """The rest of the current epoch, with a checkpoint from time to time."""
        split = Split(self.ranks.rank, self.ranks.count, self.settings.accumulate)
        batches, shares = self.task.batches(self.progress, split)
        if report:
            report.epoch(self.progress, batches)
        saved = time.monotonic()
        self.task.model.train()
        for share in shares:
            self.update(share, report)
            if time.monotonic() - saved > self.settings.checkpoint_seconds:
                self.save(report)
                saved = time.monotonic()

    def update(self, share: Share[P], report: Report | None = None) -> dict[str, float]:
        """One update with a batch; returns the figures of the whole batch."""
        number, rate = self.progress.update + 1, self.task.rate(self.progress)
        losses = self.updater.gradient(number, share, lambda network, part: self.task.loss(network, part, number))
        with self._changes():
            self.updater.step(number, rate, self.task.remedy)
            figures = merged(losses, share.weights, self.ranks)
            self.progress.update, self.progress.batch = number, self.progress.batch + 1
            if report:
                report.update(self.progress, figures, self.ranks.count * share.size)
        return figures

    def evaluate(self) -> R:
        self.task.model.eval()
        with torch.no_grad(), self.updater.precision():
            return self.task.evaluate(self.progress.update, self.ranks)

    def finish_epoch(self, result: R, report: Report | None) -> None:
        """Keep the weights if they are to be averaged, and write the averaged model."""
        progress, before = self.progress, self.progress.best
        with self._changes():
            candidates = self.task.candidates(progress)
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self._rank(candidates, (self.task.score(result), progress.epoch))
            if self.ranks.first:
                if any(epoch == progress.epoch for _, epoch in progress.best):
                    save_weights(self.epoch_weights(progress.epoch), self.task.model.state_dict())
                self.write_model(result)
            if report:
                report.dev(progress, result)
            self.save(report)
        if self.ranks.first:
            for epoch in {epoch for _, epoch in before} - {epoch for _, epoch in progress.best}:
                self.epoch_weights(epoch).unlink(missing_ok=True)

    def _rank(self, candidates: list[tuple[float, int]], now: tuple[float, int]) -> None:
        """Update the best epoch and the epochs to average, the best or the last."""
        progress, most = self.progress, self.settings.average
        progress.leader = min([now, *([progress.leader] if candidates and progress.leader else [])])
        every = sorted([*candidates, now])
        last = sorted(epoch for _, epoch in every)[-most:]
        of_last = [one for one in every if one[1] in last]
        progress.best = of_last if self.settings.average_of == "last" else every[:most]

    def write_model(self, result: R) -> None:
        """Write the mean of the epochs to average so far as a model folder."""
        write_atomically(self.model_folder / CARD, self.task.card(self.progress, result).encode())
        weights = average([self.epoch_weights(epoch) for _, epoch in self.progress.best])
        with checksummed(self.model_folder):
            save_weights(self.model_folder / WEIGHTS, weights)

    def save(self, report: Report | None) -> None:
        """Write a checkpoint. The log is flushed first: a resumed run can drop lines, but not recover them."""
        if report:
            report.flush()
            self.updater.store_scale(self.progress)
            save_checkpoint(self.checkpoint, self.task.model, self.task.optimiser, self.progress)

    def is_over(self) -> bool:
        """Whether all epochs are done, or the criterion has not improved for `patience` epochs."""
        patience, progress = self.settings.patience, self.progress
        if progress.epoch >= self.settings.epochs:
            return True
        if not patience or not progress.leader or not self.task.may_stop(progress):
            return False
        return progress.epoch - progress.leader[1] >= patience

    def epoch_weights(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:03d}.safetensors"

    def _resume(self) -> None:
        if not self.checkpoint.exists():
            return
        task = self.task
        self.progress = load_checkpoint(self.checkpoint, task.model, task.optimiser, self.progress.settings)
        self.updater.restore_scale(self.progress)
        if self.is_over():
            self.say("this run is finished; raise training.epochs or training.patience to continue it")
        else:
            self.say(f"resuming after update {self.progress.update}, epoch {self.progress.epoch + 1}")

    def _report(self) -> AbstractContextManager[Report | None]:
        """The report of the run; None in processes other than the first, which write nothing."""
        report = (self.folder, self.task.style, self.settings.epochs, self.progress)
        return Report(*report) if self.ranks.first else nullcontext()

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """A context for changes that belong together; an exception inside leaves the run inconsistent."""
        self.consistent = False
        yield
        self.consistent = True


def train_config(
    config: Config, recipe: Path, start: Callable[[Config, Say, Ranks], Trainer[Any, Any]], say: Say
) -> Path:
    """Train what `start` builds, alone or as one of several processes; returns the model folder."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    keep_memory()
    with joined() as ranks:
        return _train(config, recipe, start, say if ranks.first else lambda _line: None, ranks)


def _train(
    config: Config, recipe: Path, start: Callable[[Config, Say, Ranks], Trainer[Any, Any]], say: Say, ranks: Ranks
) -> Path:
    """Train in a separate function: the trainer must be freed before the process group is destroyed."""
    ranks.shared(lambda: replace_damaged(Path(config.training.folder) / CHECKPOINT, say))
    try:
        trainer = start(config, say, ranks)
    except ConfigError as error:
        raise ConfigError(f"{recipe}: {error}") from None
    return trainer.train()


def check_folder(config: Config, vocabulary: Vocabulary) -> Path:
    """Make the folder of a run; refuse one that holds a run with other settings."""
    folder = Path(config.training.folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_same(folder / CHECKPOINT, fixed_settings(config, vocabulary))
    return folder


def part_of_pass(rows: Sequence[list[int]], part: int, parts: int) -> list[list[int]]:
    """The batches of an epoch that is one of `parts` of a pass; at least one batch."""
    if len(rows) < parts:
        return [rows[part % len(rows)]]
    return list(rows[part * len(rows) // parts : (part + 1) * len(rows) // parts])
