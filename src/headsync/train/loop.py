"""Training of recognisers: a recipe in, a model folder out; stopped at any moment, it goes on where it was.

What an update and a measurement are stands here; the course of a run, which language models share, in `course.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headsync.attention import mechanism_of
from headsync.config import Config, DataConfig, TrainingConfig
from headsync.data.manifest import Utterance, read_manifest
from headsync.data.shards import is_sharded, read_shards
from headsync.errors import ConfigError
from headsync.features import Features, Statistics
from headsync.folder import STATISTICS, save_folder
from headsync.nn.model import Model
from headsync.tokens import Vocabulary, build_vocabulary
from headsync.train.align import limits_of
from headsync.train.card import card
from headsync.train.checkpoint import Progress, check_same
from headsync.train.course import CHECKPOINT, Course, Say, fingerprint, part_of_pass, resume, train_by
from headsync.train.data import Batch, Batches, Share, check_not_empty, load, usable
from headsync.train.descent import in_single, recompute
from headsync.train.evaluate import DevResult, evaluate_dev
from headsync.train.losses import Losses, joint_loss, merged
from headsync.train.plan import at_speeds, plan, plan_shards
from headsync.train.ranks import ALONE, Ranks
from headsync.train.report import Report
from headsync.train.schedule import noam
from headsync.train.starting import take_statistics, take_weights
from headsync.train.teacher import Teacher

REMEDY = "lower training.noam_factor or raise warmup_updates"


@dataclass
class Run(Course[DevResult]):
    """The training of a recogniser: what it learns from, what it learns, and where it is."""

    model: Model
    train: list[Utterance]
    dev: list[Utterance]
    statistics: Statistics
    features: Features
    teacher: Teacher | None = None

    def updates(self, report: Report) -> Iterator[None]:
        batches = train_batches(self)
        report.epoch(self.progress, len(batches))
        for share in load(batches, self.progress.batch, self.config.data.workers, self.split):
            losses = update(self, share)
            self.progress.batch += 1
            report.update(self.progress, losses, self.ranks.count * sum(int(p.lengths_B.sum()) for p in share.parts))
            yield

    def measure(self) -> DevResult:
        return measure(self)

    def tell(self, report: Report, result: DevResult) -> None:
        report.dev(self.progress, result)

    def card(self, result: DevResult) -> str:
        done = self.progress
        return card(self.config, self.vocabulary, self.parameters, len(self.train), done.update, done.epoch, result)

    def rivals(self) -> list[tuple[float, int]]:
        """None in the first epoch to train with halting: losses without it are of another, easier task."""
        phase, done = self.config.training.untruncated_updates, self.progress
        return [] if done.update - done.batch <= phase < done.update else done.best

    def may_stop(self) -> bool:
        """Never in the first phase, for its weights are not yet what the model needs."""
        return self.progress.update > self.config.training.untruncated_updates


def train(recipe: Path, overrides: Sequence[str] = (), say: Say = print) -> Path:
    """Train by a recipe, from the start or from where it was left; returns the model folder."""
    return train_by(recipe, overrides, say, start)


def start(config: Config, say: Say, ranks: Ranks = ALONE) -> Run:
    """Read the data, build the network, and take up the last checkpoint if there is one."""
    train_set, dev_set = (_utterances(config, name) for name in ("train", "dev"))
    vocabulary = ranks.shared(lambda: build_vocabulary(config.data, [u.text for u in train_set]))
    train_set = _usable(at_speeds(train_set, config.training.all_speeds), vocabulary, config.data.train, say)
    dev_set = _usable(dev_set, vocabulary, config.data.dev, say)
    folder, features = Path(config.training.folder), Features.of(config.features)
    progress = Progress(fingerprint=fingerprint(config, vocabulary, _tables(config)))
    model = build_model(config, vocabulary)
    if not (folder / CHECKPOINT).exists():
        take_weights(model, vocabulary, config.training, say)
    folder.mkdir(parents=True, exist_ok=True)
    check_same(folder / CHECKPOINT, progress.fingerprint)
    statistics = ranks.shared(lambda: take_statistics(folder / STATISTICS, config, train_set, say))
    adam = torch.optim.Adam(model.to(ranks.device).parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    teacher = _teacher(config.training, vocabulary)
    corpus = (train_set, dev_set, statistics, features, teacher)
    run = Run(config, folder, vocabulary, model, adam, progress, ranks, *corpus)
    resume(run, say)
    if ranks.first:
        save_folder(run.model_folder, config, vocabulary, statistics)
    _introduce(run, say)
    return run


def _teacher(config: TrainingConfig, vocabulary: Vocabulary) -> Teacher | None:
    if not config.teacher:
        return None
    return Teacher.load(Path(config.teacher), vocabulary if config.reading_weight else None)


def build_model(config: Config, vocabulary: Vocabulary) -> Model:
    """The network with its first weights, as the settings would have it compute."""
    torch.manual_seed(config.training.seed)
    model = Model(config, config.features.columns, vocabulary.size)
    if config.training.frozen_layers > config.encoder.layers:
        raise ConfigError(f"training.frozen_layers = {config.training.frozen_layers}: the encoder has fewer layers")
    if config.training.frozen_layers == config.encoder.layers:
        model.encoder.requires_grad_(False)
    elif config.training.frozen_layers:
        for part in (model.encoder.front, *model.encoder.layers[: config.training.frozen_layers]):
            part.requires_grad_(False)
    if config.training.alone:
        model.decodes = False
        model.decoder.requires_grad_(False)
    if config.training.recompute:
        recompute(list(model.encoder.layers), "forward")
        recompute(model.decoder.layers, "whole")
    if config.training.precision != "float32":
        in_single([layer.cross.mechanism for layer in model.decoder.attending])
    return model


def epoch_rows(run: Run) -> list[list[int]]:
    """The batches of the present epoch, which is a whole pass over the corpus or an even part of one."""
    settings, parts = run.config.training, run.config.training.epochs_per_pass
    whole_pass, part = divmod(run.progress.epoch, parts)
    if is_sharded(Path(run.config.data.train)):
        at_once = run.config.data.shards_at_once
        rows = plan_shards(run.train, settings.batch_frames, settings.seed, whole_pass, at_once)
    else:
        in_order = settings.shortest_first and whole_pass == 0
        rows = plan(run.train, settings.batch_frames, settings.seed, whole_pass, in_order)
    return part_of_pass(rows, part, parts)


def train_batches(run: Run) -> Batches:
    """All batches of the present epoch."""
    augment = (run.config.training, run.progress.epoch)
    return Batches(run.train, run.vocabulary, run.statistics, epoch_rows(run), augment, run.features, run.teacher)


def dev_batches(run: Run) -> Batches:
    """The whole development set, always the same way."""
    rows = plan(run.dev, run.config.training.batch_frames, 0, 0)
    return Batches(run.dev, run.vocabulary, run.statistics, rows, features=run.features, teacher=run.teacher)


def update(run: Run, share: Share) -> Losses:
    """One step of Adam; the losses are those of the whole batch, of which this process has a share."""
    settings, number = run.config.training, run.progress.update + 1
    set_halting(run, number)
    rate = noam(number, run.config.network.width, settings.noam_factor, settings.warmup_updates)
    for group in run.optimiser.param_groups:
        group["lr"] = rate

    def losses_of(part: Batch) -> tuple[Losses, Tensor]:
        batch = part.to(run.ranks.device)
        limit_BL = limits(run, batch, number)
        output = run.descent.network(batch.features_BTF, batch.lengths_B, batch.tokens_BL, limit_BL)
        losses = joint_loss(output, batch, settings)
        return losses.detached(), losses.joint

    losses = run.descent.gradient(number, share.parts, share.weights, losses_of)
    run.settled = False
    run.descent.step(number, REMEDY)
    run.progress.update = number
    return merged(losses, share.weights, run.ranks)


def set_halting(run: Run, number: int) -> None:
    """Let the steps of an update stop as they should by then."""
    run.model.decoder.set_threshold(threshold_of(run.config, number))
    run.model.decoder.set_sharpness(sharpness_of(run.config, number))


def sharpness_of(config: Config, number: int) -> float:
    """The factor of the energies in an update: 1 in the first phase, from there on rising in a line."""
    since, most = number - config.training.untruncated_updates, config.decoder.sharpness
    risen = min(1.0, since / config.training.sharpen_updates) if config.training.sharpen_updates else 1.0
    return 1.0 + (most - 1.0) * risen if since > 0 else 1.0


def threshold_of(config: Config, number: int) -> float:
    """The halting threshold of an update: none in the first phase, in which every step sees all frames."""
    return config.decoder.threshold if number > config.training.untruncated_updates else math.inf


def limits(run: Run, batch: Batch, number: int) -> Tensor | None:
    """How far the steps of an update may look, where CTC says so: everywhere in the first phase, while it learns."""
    return limits_of(run.model, batch, run.config) if number > run.config.training.untruncated_updates else None


def measure(run: Run) -> DevResult:
    """Measure on dev, the steps halted and limited as they were in the last update."""
    number = run.progress.update
    set_halting(run, number)
    with run.descent.precision():
        return evaluate_dev(
            run.model, dev_batches(run), run.config.training, lambda batch: limits(run, batch, number), run.ranks
        )


def _tables(config: Config) -> list[str]:
    """The tables that a checkpoint depends on."""
    return ["network", "encoder", "decoder", *(["features"] if config.features.pitch else [])]


def _utterances(config: Config, name: str) -> list[Utterance]:
    path = getattr(config.data, name)
    if not path:
        raise ConfigError(f"data.{name} is not set; name a manifest, which `headsync prepare` makes")
    if is_sharded(Path(path)) and name == "dev":
        raise ConfigError(f"data.dev = {path!r} is a folder; name a manifest, shards are for data.train")
    utterances = read_shards(Path(path)) if is_sharded(Path(path)) else read_manifest(Path(path))
    check_not_empty(utterances, path)
    return utterances


def _usable(utterances: list[Utterance], vocabulary: Vocabulary, name: str, say: Say) -> list[Utterance]:
    fit, short = usable(utterances, vocabulary)
    check_not_empty(fit, name)
    if short:
        say(f"{name}: {len(short)} utterances are too short for their text and are left out: {_some(short)}")
    return fit


def other_classes(vocabulary: Vocabulary, data: DataConfig) -> str | None:
    """A sentence on how the output classes differ from those of the published system, if they do.

    Papers count the blank and the end of a sentence among the classes, or do not.
    """
    published, tokens = data.published_classes, len(vocabulary.tokens)
    if not published or published in (tokens, vocabulary.size):
        return None
    kinds = f"{tokens} {vocabulary.kind} occur in {data.train}, with blank and sentence end {vocabulary.size} classes"
    return f"{kinds}, where the published system has {published}: the texts differ, or parts of the corpus are missing"


def _introduce(run: Run, say: Say) -> None:
    settings, sizes = run.config.training, f"{run.parameters / 1e6:.2f} M parameters, {len(run.train)} utterances"
    say(f"{sizes}, {run.vocabulary.size} classes, in {run.folder}")
    if told := other_classes(run.vocabulary, run.config.data):
        say(told)
    updates = len(epoch_rows(run)) * settings.epochs
    if updates <= settings.untruncated_updates:
        say(
            f"all of the about {updates} updates fall into the first phase, in which no step is halted; "
            "raise training.epochs or lower training.untruncated_updates"
        )
    counts_late = mechanism_of(run.config.decoder).counts_late and settings.quantity_weight > 0
    if counts_late and not settings.untruncated_updates and not settings.start_from:
        say(
            "heads that count tokens before they have found any learn to stop on the first frame; "
            "raise training.untruncated_updates or set training.quantity_weight to 0"
        )


def _some(utterances: Sequence[Utterance]) -> str:
    names = [u.id for u in utterances[:5]]
    return ", ".join(names) + (", ..." if len(utterances) > 5 else "")


__all__ = ["DevResult", "Run", "train"]
