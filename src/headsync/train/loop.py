"""Training: a recipe in, a model folder out; stopped at any moment, it goes on where it was.

Nothing random is carried along: the batches of an epoch follow from seed and epoch, dropout from seed and update. So a
checkpoint needs only weights, optimiser and three counters, and a resumed run repeats an undisturbed one bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from headsync.config import Config, load_config
from headsync.data.manifest import Utterance, read_manifest
from headsync.errors import ConfigError, TrainingError
from headsync.features import Features, Statistics
from headsync.folder import CARD, STATISTICS, WEIGHTS, save_folder, write_atomically
from headsync.nn.model import Model
from headsync.tokens import Vocabulary, build_vocabulary
from headsync.train.align import limits_of
from headsync.train.card import card
from headsync.train.checkpoint import (
    Progress,
    average,
    load_checkpoint,
    save_checkpoint,
    save_weights,
)
from headsync.train.data import Batch, Batches, check_not_empty, load, plan, usable
from headsync.train.evaluate import DevResult, evaluate_dev
from headsync.train.losses import Losses, joint_loss
from headsync.train.report import Report
from headsync.train.schedule import noam
from headsync.train.starting import take_statistics, take_weights

CHECKPOINT = "checkpoint.safetensors"


@dataclass
class Run:
    """One training run: what it learns from, what it learns, and where it is."""

    config: Config
    folder: Path
    train: list[Utterance]
    dev: list[Utterance]
    vocabulary: Vocabulary
    statistics: Statistics
    model: Model
    adam: torch.optim.Adam
    progress: Progress
    settled: bool = True  # False while weights, counters and log may tell of different updates

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    def epoch_weights(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:03d}.safetensors"


def train(recipe: Path, overrides: Sequence[str] = (), say: Callable[[str], None] = print) -> Path:
    """Train by a recipe, from the start or from where it was left; returns the model folder."""
    config = load_config(recipe, overrides)
    torch.set_num_threads(config.training.threads)
    try:
        run = start(config, say)
    except ConfigError as error:
        raise ConfigError(f"{recipe}: {error}") from None
    with Report(run.folder, config, run.progress) as report:
        try:
            while run.progress.epoch < config.training.epochs and not out_of_patience(run):
                train_epoch(run, report)
                finish_epoch(run, report)
        except KeyboardInterrupt:
            if run.settled:
                keep(run, report)
            say("stopped; the same command goes on from the last checkpoint")
            raise
    return run.model_folder


def start(config: Config, say: Callable[[str], None]) -> Run:
    """Read the data, build the network, and take up the last checkpoint if there is one."""
    train_set, dev_set = (_manifest(config, name) for name in ("train", "dev"))
    vocabulary = build_vocabulary(config.data, [u.text for u in train_set])
    train_set = _usable(train_set, vocabulary, config.data.train, say)
    dev_set = _usable(dev_set, vocabulary, config.data.dev, say)
    torch.manual_seed(config.training.seed)
    model = Model(config, config.features.columns, vocabulary.size)
    adam = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    folder = Path(config.training.folder)
    if not (folder / CHECKPOINT).exists():
        take_weights(model, vocabulary, config.training, say)
    folder.mkdir(parents=True, exist_ok=True)
    statistics = take_statistics(folder / STATISTICS, config.training, train_set, say)
    progress = Progress(fingerprint=_fingerprint(config, vocabulary))
    run = Run(config, folder, train_set, dev_set, vocabulary, statistics, model, adam, progress)
    if run.checkpoint.exists():
        _resume(run, say)
    save_folder(run.model_folder, config, vocabulary, statistics)
    _introduce(run, say)
    return run


def train_epoch(run: Run, report: Report) -> None:
    """The rest of the present epoch, with a checkpoint now and then."""
    settings = run.config.training
    rows = epoch_rows(run)
    batches = Batches(run.train, run.vocabulary, run.statistics, rows, (settings, run.progress.epoch))
    report.epoch(run.progress, len(rows))
    saved = time.monotonic()
    run.model.train()
    for batch in load(batches, run.progress.batch, run.config.data.workers):
        losses = update(run, batch)
        run.progress.batch += 1
        report.update(run.progress, losses, int(batch.lengths_B.sum()))
        run.settled = True
        if time.monotonic() - saved > settings.checkpoint_seconds:
            keep(run, report)
            saved = time.monotonic()


def keep(run: Run, report: Report) -> None:
    """Write a checkpoint, the log before it: lines too many are cut back when a run goes on, missing ones stay away."""
    report.flush()
    save_checkpoint(run.checkpoint, run.model, run.adam, run.progress)


def epoch_rows(run: Run) -> list[list[int]]:
    """The batches of the present epoch, which is a whole pass over the corpus or an even part of one."""
    settings, parts = run.config.training, run.config.training.epochs_per_pass
    whole_pass, part = divmod(run.progress.epoch, parts)
    in_order = settings.shortest_first and whole_pass == 0
    rows = plan(run.train, settings.batch_frames, settings.seed, whole_pass, in_order)
    return rows[part * len(rows) // parts : (part + 1) * len(rows) // parts]


def update(run: Run, batch: Batch) -> Losses:
    """One step of Adam. Dropout is seeded by the update, so that it needs no state."""
    settings, number = run.config.training, run.progress.update + 1
    torch.manual_seed(settings.seed * 1_000_003 + number)
    run.model.decoder.set_threshold(threshold_of(run.config, number))
    rate = noam(number, run.config.network.width, settings.noam_factor, settings.warmup_updates)
    for group in run.adam.param_groups:
        group["lr"] = rate
    limit_BL = limits(run, batch, number)
    losses = joint_loss(run.model(batch.features_BTF, batch.lengths_B, batch.tokens_BL, limit_BL), batch, settings)
    run.adam.zero_grad()
    losses.joint.backward()
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.clip_norm)
    _check_finite(norm, number)
    run.settled = False
    run.adam.step()
    run.progress.update = number
    return losses


def threshold_of(config: Config, number: int) -> float:
    """The halting threshold of an update: none in the first phase, in which every step sees all frames."""
    return config.decoder.threshold if number > config.training.untruncated_updates else math.inf


def limits(run: Run, batch: Batch, number: int) -> Tensor | None:
    """How far the steps of an update may look, where CTC says so: everywhere in the first phase, while it learns."""
    return limits_of(run.model, batch, run.config) if number > run.config.training.untruncated_updates else None


def measure(run: Run) -> DevResult:
    """Measure on dev, the steps halted and limited as they were in the last update."""
    number = run.progress.update
    run.model.decoder.set_threshold(threshold_of(run.config, number))
    return evaluate_dev(run.model, dev_batches(run), run.config.training, lambda batch: limits(run, batch, number))


def finish_epoch(run: Run, report: Report) -> None:
    """Measure on dev, keep the weights if they are among the best, write the averaged model."""
    progress, before = run.progress, run.progress.best
    result = measure(run)
    run.settled = False
    rivals = [] if _halting_began(run) else before
    progress.epoch, progress.batch = progress.epoch + 1, 0
    progress.best = sorted([*rivals, (result.loss, progress.epoch)])[: run.config.training.average]
    save_weights(run.epoch_weights(progress.epoch), run.model.state_dict())
    write_model(run, result)
    report.dev(progress, result)
    keep(run, report)
    run.settled = True
    for _, epoch in {*before, (result.loss, progress.epoch)} - set(progress.best):
        run.epoch_weights(epoch).unlink(missing_ok=True)


def write_model(run: Run, result: DevResult) -> None:
    """The mean of the best epochs so far, as a model folder that can be used at once."""
    parameters = sum(p.numel() for p in run.model.parameters())
    progress = run.progress
    text = card(run.config, run.vocabulary, parameters, len(run.train), progress.update, progress.epoch, result)
    write_atomically(run.model_folder / CARD, text.encode())
    weights = average([run.epoch_weights(epoch) for _, epoch in progress.best])
    save_weights(run.model_folder / WEIGHTS, weights)


def out_of_patience(run: Run) -> bool:
    """Never in the first phase, for its weights are not yet what the model needs."""
    settings, progress = run.config.training, run.progress
    if not settings.patience or progress.update <= settings.untruncated_updates:
        return False
    return bool(progress.best) and progress.epoch - progress.best[0][1] >= settings.patience


def _halting_began(run: Run) -> bool:
    """Whether this epoch was the first to train with halting: losses without it are of another, easier task."""
    progress, phase = run.progress, run.config.training.untruncated_updates
    return progress.update - progress.batch <= phase < progress.update


def dev_batches(run: Run) -> Batches:
    """The whole development set, always the same way."""
    rows = plan(run.dev, run.config.training.batch_frames, 0, 0)
    return Batches(run.dev, run.vocabulary, run.statistics, rows)


def _manifest(config: Config, name: str) -> list[Utterance]:
    path = getattr(config.data, name)
    if not path:
        raise ConfigError(f"data.{name} is not set; name a manifest, which `headsync prepare` makes")
    utterances = read_manifest(Path(path))
    check_not_empty(utterances, path)
    return utterances


def _usable(
    utterances: list[Utterance], vocabulary: Vocabulary, name: str, say: Callable[[str], None]
) -> list[Utterance]:
    fit, short = usable(utterances, vocabulary)
    check_not_empty(fit, name)
    if short:
        say(f"{name}: {len(short)} utterances are too short for their text and are left out: {_some(short)}")
    return fit


def _resume(run: Run, say: Callable[[str], None]) -> None:
    run.progress = load_checkpoint(run.checkpoint, run.model, run.adam, run.progress.fingerprint)
    say(f"going on after update {run.progress.update}, epoch {run.progress.epoch + 1}")


def _introduce(run: Run, say: Callable[[str], None]) -> None:
    parameters, settings = sum(p.numel() for p in run.model.parameters()), run.config.training
    sizes = f"{parameters / 1e6:.2f} M parameters, {len(run.train)} utterances, {run.vocabulary.size} classes"
    say(f"{sizes}, in {run.folder}")
    updates = len(epoch_rows(run)) * settings.epochs
    if updates <= settings.untruncated_updates:
        say(
            f"all of the about {updates} updates fall into the first phase, in which no step is halted; "
            "raise training.epochs or lower training.untruncated_updates"
        )


def _fingerprint(config: Config, vocabulary: Vocabulary) -> str:
    """What must stay the same for a checkpoint to be taken up; the length of the run and the like may change.

    Only what differs from the defaults counts, so that a later version with more settings can go on with the run.
    """
    free = replace(config.training, epochs=100, patience=0, threads=1, checkpoint_seconds=120.0, folder="runs/run")
    parts = (config.network, config.encoder, config.decoder, replace(config.data, workers=1), free)
    told = [{k: v for k, v in asdict(part).items() if v != asdict(type(part)())[k]} for part in parts]
    return hashlib.sha256(json.dumps([told, vocabulary.tokens]).encode()).hexdigest()[:16]


def _check_finite(norm: Tensor, update: int) -> None:
    if not torch.isfinite(norm):
        raise TrainingError(
            f"update {update}: the gradient is no longer a number; lower training.noam_factor or raise warmup_updates"
        )


def _some(utterances: Sequence[Utterance]) -> str:
    names = [u.id for u in utterances[:5]]
    return ", ".join(names) + (", ..." if len(utterances) > 5 else "")


__all__ = ["DevResult", "Run", "train"]
