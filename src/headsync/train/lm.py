"""Training of language models: a recipe with `kind = "lm"` in, a model folder out.

As with recognisers, the batches of an epoch follow from seed and epoch and dropout from seed and update, so that a run
that was stopped at any moment goes on and ends bit by bit as an undisturbed one.

Shapes: B rows, L output steps, V output classes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.config import Config, load_config
from headsync.data.text import Corpus, encode, read_sentences, split_off, word_vocabulary
from headsync.errors import ConfigError, DataError, TrainingError
from headsync.folder import CARD, VOCABULARY, WEIGHTS, find, save_language_folder, write_atomically
from headsync.nn.lm import LanguageNetwork
from headsync.tokens import Vocabulary, build_vocabulary
from headsync.train.checkpoint import (
    Optimiser,
    Progress,
    average,
    load_checkpoint,
    save_checkpoint,
    save_weights,
)
from headsync.train.data import PADDING
from headsync.train.lm_report import LanguageLosses, LanguageReport, card
from headsync.train.schedule import decayed

CHECKPOINT = "checkpoint.safetensors"


class Batch(NamedTuple):
    """One update's worth of sentences."""

    tokens_BL: Tensor  # <sos> and the tokens
    targets_BL: Tensor  # the tokens and <eos>; PADDING behind


@dataclass
class Run:
    """One training run: what it learns from, what it learns, and where it is."""

    config: Config
    folder: Path
    train: Corpus
    dev: Corpus
    vocabulary: Vocabulary
    model: LanguageNetwork
    optimiser: Optimiser
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
    with LanguageReport(run.folder, run.config, run.progress) as report:
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
    """Read the texts, build the network, and take up the last checkpoint if there is one."""
    learned, measured = texts_of(config)
    vocabulary = vocabulary_of(config, learned)
    config = replace(config, data=replace(config.data, tokens=vocabulary.kind))
    train_set, dev_set = (_spelled(texts, vocabulary, say) for texts in (learned, measured))
    torch.manual_seed(config.training.seed)
    model = LanguageNetwork(config.language, vocabulary.size)
    progress = Progress(fingerprint=_fingerprint(config, vocabulary))
    folder = Path(config.training.folder)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(config, folder, train_set, dev_set, vocabulary, model, _optimiser(config, model), progress)
    if run.checkpoint.exists():
        run.progress = load_checkpoint(run.checkpoint, model, run.optimiser, progress.fingerprint)
        say(f"going on after update {run.progress.update}, epoch {run.progress.epoch + 1}")
    save_language_folder(run.model_folder, config, vocabulary)
    sizes = f"{_parameters(model) / 1e6:.2f} M parameters, {len(train_set)} sentences, {train_set.words} words"
    say(f"{sizes}, {vocabulary.size} classes, in {folder}")
    return run


def texts_of(config: Config) -> tuple[Sequence[str], Sequence[str]]:
    """Sentences to learn from and to measure with."""
    if not config.data.train:
        raise ConfigError("data.train is not set; name a text with one sentence a line")
    sentences = read_sentences(Path(config.data.train), config.language.case)
    if config.data.dev:
        return sentences, read_sentences(Path(config.data.dev), config.language.case)
    return split_off(sentences, config.language.held_out)


def vocabulary_of(config: Config, sentences: Sequence[str]) -> Vocabulary:
    """That of the recogniser that the model is for, or else what occurs in the texts."""
    if config.language.vocabulary_from:
        return Vocabulary.load(find(config.language.vocabulary_from) / VOCABULARY)
    if config.data.tokens == "words":
        return word_vocabulary(sentences, config.language)
    return build_vocabulary(config.data, sentences)


def train_epoch(run: Run, report: LanguageReport) -> None:
    """The rest of the present epoch, with a checkpoint now and then."""
    rows = epoch_rows(run)
    report.epoch(run.progress, len(rows))
    saved = time.monotonic()
    run.model.train()
    for numbers in rows[run.progress.batch :]:
        loss, tokens = update(run, collate([run.train[n] for n in numbers], run.vocabulary.end))
        run.progress.batch += 1
        report.learned(run.progress, loss, tokens)
        run.settled = True
        if time.monotonic() - saved > run.config.training.checkpoint_seconds:
            keep(run, report)
            saved = time.monotonic()


def epoch_rows(run: Run) -> list[list[int]]:
    """The batches of the present epoch, which is a whole pass over the text or an even part of one."""
    settings, parts = run.config.training, run.config.training.epochs_per_pass
    whole_pass, part = divmod(run.progress.epoch, parts)
    rows = plan(run.train.lengths, run.config.language.batch_tokens, settings.seed, whole_pass)
    return rows[part * len(rows) // parts : (part + 1) * len(rows) // parts]


def plan(lengths: npt.NDArray[np.int64], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches as lists of indices: neighbours in length, no more than `batch_tokens` with padding and ends."""
    rng = np.random.default_rng([seed, epoch])
    order = np.argsort(lengths * rng.uniform(0.9, 1.1, len(lengths)), kind="stable")  # other neighbours every epoch
    batches: list[list[int]] = [[]]
    longest = 0
    for index in order.tolist():
        longest = max(longest, int(lengths[index]) + 1)
        if batches[-1] and longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = int(lengths[index]) + 1
        batches[-1].append(index)
    return [batches[i] for i in rng.permutation(len(batches))]


def collate(sentences: Sequence[npt.NDArray[np.int32]], end: int) -> Batch:
    """Sentences of unequal length to padded tensors."""
    steps = max(len(sentence) for sentence in sentences) + 1
    tokens = torch.full((len(sentences), steps), end)
    targets = torch.full((len(sentences), steps), PADDING)
    for row, sentence in enumerate(sentences):
        ids = torch.from_numpy(sentence.astype(np.int64))
        tokens[row, 1 : len(ids) + 1] = ids
        targets[row, : len(ids)] = ids
        targets[row, len(ids)] = end
    return Batch(tokens, targets)


def update(run: Run, batch: Batch) -> tuple[float, int]:
    """One step of the optimiser: the mean loss of a token, and how many there were."""
    number = run.progress.update + 1
    torch.manual_seed(run.config.training.seed * 1_000_003 + number)
    language = run.config.language
    for group in run.optimiser.param_groups:
        group["lr"] = decayed(run.progress.epoch, language.rate, language.decay, language.decay_after)
    total, tokens = loss_of(run.model, batch)
    run.optimiser.zero_grad()
    (total / tokens).backward()
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.config.training.clip_norm)
    if not torch.isfinite(norm):
        raise TrainingError(f"update {number}: the gradient is no longer a number; lower language.rate")
    run.settled = False
    run.optimiser.step()
    run.progress.update = number
    return float(total.detach()) / tokens, tokens


def loss_of(model: LanguageNetwork, batch: Batch) -> tuple[Tensor, int]:
    """The summed negative log probability of the sentences, and the number of their tokens, ends included."""
    logits = model(batch.tokens_BL).flatten(0, 1)
    total = F.cross_entropy(logits, batch.targets_BL.flatten(), ignore_index=PADDING, reduction="sum")
    return total, int((batch.targets_BL != PADDING).sum())


@torch.no_grad()
def measure(run: Run) -> LanguageLosses:
    """How well the network foretells the held-out sentences."""
    run.model.eval()
    total = tokens = 0.0
    for numbers in plan(run.dev.lengths, run.config.language.batch_tokens, 0, 0):
        loss, count = loss_of(run.model, collate([run.dev[n] for n in numbers], run.vocabulary.end))
        total, tokens = total + float(loss), tokens + count
    return LanguageLosses.of(total, int(tokens), run.dev.words + len(run.dev))


def finish_epoch(run: Run, report: LanguageReport) -> None:
    """Measure on held-out text, keep the weights if they are among the best, write the averaged model."""
    progress, before = run.progress, run.progress.best
    result = measure(run)
    run.settled = False
    progress.epoch, progress.batch = progress.epoch + 1, 0
    progress.best = sorted([*before, (result.loss, progress.epoch)])[: run.config.training.average]
    save_weights(run.epoch_weights(progress.epoch), run.model.state_dict())
    write_model(run, result)
    report.measured(progress, result)
    keep(run, report)
    run.settled = True
    for _, epoch in {*before, (result.loss, progress.epoch)} - set(progress.best):
        run.epoch_weights(epoch).unlink(missing_ok=True)


def write_model(run: Run, result: LanguageLosses) -> None:
    """The mean of the best epochs so far, as a model folder that can be used at once."""
    learned_from = (len(run.train), run.train.words)
    text = card(run.config, run.vocabulary, _parameters(run.model), learned_from, run.progress, result)
    write_atomically(run.model_folder / CARD, text.encode())
    weights = average([run.epoch_weights(epoch) for _, epoch in run.progress.best])
    save_weights(run.model_folder / WEIGHTS, weights)


def keep(run: Run, report: LanguageReport) -> None:
    """Write a checkpoint, the log before it: lines too many are cut back when a run goes on."""
    report.flush()
    save_checkpoint(run.checkpoint, run.model, run.optimiser, run.progress)


def out_of_patience(run: Run) -> bool:
    """Whether the held-out text has not become easier for too many epochs."""
    patience, best = run.config.training.patience, run.progress.best
    return bool(patience and best) and run.progress.epoch - best[0][1] >= patience


def _spelled(sentences: Sequence[str], vocabulary: Vocabulary, say: Callable[[str], None]) -> Corpus:
    corpus, strange = encode(sentences, vocabulary)
    if not len(corpus):
        vocabulary.encode(sentences[0])  # says what is wrong with it
        raise DataError("no sentence is left to work on")
    if strange:
        say(f"{len(strange)} of {len(sentences)} sentences have other characters than the vocabulary: left out")
    return corpus


def _optimiser(config: Config, model: LanguageNetwork) -> Optimiser:
    if config.language.optimiser == "sgd":
        return torch.optim.SGD(model.parameters(), lr=config.language.rate)
    return torch.optim.Adam(model.parameters(), lr=config.language.rate)


def _parameters(model: LanguageNetwork) -> int:
    return sum(p.numel() for p in model.parameters())


def _fingerprint(config: Config, vocabulary: Vocabulary) -> str:
    """What must stay the same for a checkpoint to be taken up: all that differs from the defaults and matters."""
    free = replace(config.training, epochs=100, patience=0, threads=1, checkpoint_seconds=120.0, folder="runs/run")
    parts = (config.language, replace(config.data, workers=1), free)
    told = [{k: v for k, v in asdict(part).items() if v != asdict(type(part)())[k]} for part in parts]
    return hashlib.sha256(json.dumps([told, vocabulary.tokens]).encode()).hexdigest()[:16]
