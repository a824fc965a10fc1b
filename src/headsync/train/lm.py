"""Training of language models: a recipe with `kind = "lm"` in, a model folder out.

What an update and a measurement are stands here; the course of a run, which recognisers share, in `course.py`.

Shapes: B rows, L output steps, V output classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.config import Config
from headsync.data.text import Corpus, encode, read_sentences, split_off, word_vocabulary
from headsync.errors import ConfigError, DataError
from headsync.folder import VOCABULARY, find, save_language_folder
from headsync.nn.lm import LanguageNetwork
from headsync.tokens import Vocabulary, build_vocabulary
from headsync.train.checkpoint import Optimiser, Progress
from headsync.train.course import Course, Say, fingerprint, part_of_pass, resume, train_by
from headsync.train.data import PADDING
from headsync.train.lm_report import LanguageLosses, LanguageReport, MuteLanguageReport, card
from headsync.train.plan import grouped
from headsync.train.ranks import ALONE, Ranks
from headsync.train.report import Report
from headsync.train.schedule import decayed

REMEDY = "lower language.rate"


class Batch(NamedTuple):
    """Rows that go through the network together."""

    tokens_BL: Tensor  # <sos> and the tokens
    targets_BL: Tensor  # the tokens and <eos>; PADDING behind


@dataclass
class Run(Course[LanguageLosses]):
    """The training of a language model: what it learns from, what it learns, and where it is."""

    model: LanguageNetwork
    train: Corpus
    dev: Corpus

    def report(self) -> LanguageReport:
        if not self.ranks.first:
            return MuteLanguageReport(self.config)
        return LanguageReport(self.folder, self.config, self.progress)

    def updates(self, report: Report) -> Iterator[None]:
        assert isinstance(report, LanguageReport)
        rows = epoch_rows(self)
        report.epoch(self.progress, len(rows))
        for numbers in rows[self.progress.batch :]:
            loss, tokens = update(self, numbers)
            self.progress.batch += 1
            report.learned(self.progress, loss, tokens)
            yield

    def measure(self) -> LanguageLosses:
        return measure(self)

    def tell(self, report: Report, result: LanguageLosses) -> None:
        assert isinstance(report, LanguageReport)
        report.measured(self.progress, result)

    def card(self, result: LanguageLosses) -> str:
        learned_from = (len(self.train), self.train.words)
        return card(self.config, self.vocabulary, self.parameters, learned_from, self.progress, result)


def train(recipe: Path, overrides: Sequence[str] = (), say: Say = print) -> Path:
    """Train by a recipe, from the start or from where it was left; returns the model folder."""
    return train_by(recipe, overrides, say, start)


def start(config: Config, say: Say, ranks: Ranks = ALONE) -> Run:
    """Read the texts, build the network, and take up the last checkpoint if there is one."""
    learned, measured = texts_of(config)
    vocabulary = ranks.shared(lambda: vocabulary_of(config, learned))
    config = replace(config, data=replace(config.data, tokens=vocabulary.kind))
    train_set, dev_set = (_spelled(texts, vocabulary, say) for texts in (learned, measured))
    torch.manual_seed(config.training.seed)
    model = LanguageNetwork(config.language, vocabulary.size).to(ranks.device)
    progress = Progress(fingerprint=fingerprint(config, vocabulary, ["language"]))
    folder = Path(config.training.folder)
    folder.mkdir(parents=True, exist_ok=True)
    optimiser = _optimiser(config, model)
    run = Run(config, folder, vocabulary, model, optimiser, progress, ranks, train_set, dev_set)
    resume(run, say)
    if ranks.first:
        save_language_folder(run.model_folder, config, vocabulary)
    sizes = f"{run.parameters / 1e6:.2f} M parameters, {len(train_set)} sentences, {train_set.words} words"
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


def epoch_rows(run: Run) -> list[list[int]]:
    """The batches of the present epoch, which is a whole pass over the text or an even part of one."""
    settings, parts = run.config.training, run.config.training.epochs_per_pass
    whole_pass, part = divmod(run.progress.epoch, parts)
    rows = plan(run.train.lengths, run.config.language.batch_tokens, settings.seed, whole_pass)
    return part_of_pass(rows, part, parts)


def plan(lengths: npt.NDArray[np.int64], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches as lists of indices: neighbours in length, no more than `batch_tokens` with padding and ends."""
    return grouped(lengths, lengths + 1, batch_tokens, (seed, epoch))


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


def update(run: Run, numbers: Sequence[int]) -> tuple[float, int]:
    """One step of the optimiser with these sentences: the mean loss of a token, and how many there were."""
    number, language = run.progress.update + 1, run.config.language
    for group in run.optimiser.param_groups:
        group["lr"] = decayed(run.progress.epoch, language.rate, language.decay, language.decay_after)
    tokens = sum(len(run.train[n]) + 1 for n in numbers)
    parts, weights = _share(run, numbers, tokens)

    def loss_of_part(part: Batch) -> tuple[float, Tensor]:
        total, count = loss_of(run.descent.network, Batch(*(tensor.to(run.ranks.device) for tensor in part)))
        return float(total.detach()) / count, total / count

    losses = run.descent.gradient(number, parts, weights, loss_of_part)
    run.settled = False
    run.descent.step(number, REMEDY)
    run.progress.update = number
    mine = sum(loss * weight for loss, weight in zip(losses, weights, strict=True))
    return float(run.ranks.total(torch.tensor(mine, dtype=torch.float64))), tokens


def _share(run: Run, numbers: Sequence[int], tokens: int) -> tuple[list[Batch], list[float]]:
    """The parts of a batch that this process works on, and how much each counts."""
    rows = run.split.rows(numbers)
    weights = [sum(len(run.train[n]) + 1 for n in part) / tokens for part in rows]
    if not rows:  # a batch of fewer sentences than processes: take one that counts for nothing
        rows, weights = [list(numbers[:1])], [0.0]
    return [collate([run.train[n] for n in part], run.vocabulary.end) for part in rows], weights


def loss_of(model: torch.nn.Module, batch: Batch) -> tuple[Tensor, int]:
    """The summed negative log probability of the sentences, and the number of their tokens, ends included."""
    logits = model(batch.tokens_BL).flatten(0, 1)
    total = F.cross_entropy(logits, batch.targets_BL.flatten(), ignore_index=PADDING, reduction="sum")
    return total, int((batch.targets_BL != PADDING).sum())


@torch.no_grad()
def measure(run: Run) -> LanguageLosses:
    """How well the network foretells the held-out sentences."""
    run.model.eval()
    total = tokens = 0.0
    rows = plan(run.dev.lengths, run.config.language.batch_tokens, 0, 0)
    for numbers in rows[run.ranks.rank :: run.ranks.count]:
        batch = collate([run.dev[n] for n in numbers], run.vocabulary.end)
        with run.descent.precision():
            loss, count = loss_of(run.model, Batch(*(tensor.to(run.ranks.device) for tensor in batch)))
        total, tokens = total + float(loss), tokens + count
    total, tokens = run.ranks.total(torch.tensor([total, tokens], dtype=torch.float64)).tolist()
    return LanguageLosses.of(total, int(tokens), run.dev.words + len(run.dev))


def _spelled(sentences: Sequence[str], vocabulary: Vocabulary, say: Say) -> Corpus:
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
