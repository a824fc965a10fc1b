"""Training of language models: sentences, cross-entropy, and perplexity on the development set.

Shapes: B rows, L output steps, V output classes.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.config import Config
from headsync.corpora.lm_text import HELD_OUT, Corpus, encode, read_sentences, split_off, word_vocabulary
from headsync.errors import ConfigError, DataError
from headsync.model_folder import VOCABULARY, checksummed, find, save_language_folder
from headsync.nn.lstm_lm import LanguageNetwork
from headsync.text.vocabulary import Vocabulary, build_vocabulary
from headsync.training import Say
from headsync.training.batches import PADDING, inputs_and_targets
from headsync.training.bucketing import Share, Split, grouped
from headsync.training.checkpoint import Optimiser, TrainingProgress
from headsync.training.distributed import ALONE, Ranks
from headsync.training.losses import Losses
from headsync.training.model_card import language_model_card
from headsync.training.report import Style
from headsync.training.trainer import Task, Trainer, check_folder, part_of_pass


class Sentences(NamedTuple):
    """A batch of sentences, or a part of one."""

    tokens_BL: Tensor  # <sos> and the tokens
    targets_BL: Tensor  # the tokens and <eos>, followed by PADDING


class DevPerplexity(NamedTuple):
    """Means over the tokens of a text, sentence ends included, in natural logarithms."""

    loss: float  # of a token
    perplexity: float  # of a token
    word_perplexity: float  # of a word, with its space or sentence end

    @classmethod
    def of(cls, total: float, tokens: int, words: int) -> DevPerplexity:
        """From the sum over `tokens`, which spell `words`; both count sentence ends."""
        return cls(total / tokens, _exp(total / tokens), _exp(total / words))


@dataclass
class LmTask(Task[Sentences, DevPerplexity]):
    config: Config
    vocabulary: Vocabulary
    model: LanguageNetwork
    optimiser: Optimiser
    train: Corpus
    dev: Corpus

    remedy = "lower language.rate"
    style = Style(
        lambda means: _figures(means),
        lambda result: f"perplexity {result.perplexity:.2f}, per word {result.word_perplexity:.1f}",
        "tokens/s",
    )

    def batches(self, progress: TrainingProgress, split: Split) -> tuple[int, Iterator[Share[Sentences]]]:
        rows = self.rows(progress.epoch)
        return len(rows), (self.share(numbers, split) for numbers in rows[progress.batch :])

    def rate(self, progress: TrainingProgress) -> float:
        return self.config.language.rate

    def loss(self, network: nn.Module, part: Sentences, update: int) -> Losses:
        total, tokens = token_losses(network, self._to_device(part))
        return Losses(total / tokens, {})

    def evaluate(self, update: int, ranks: Ranks) -> DevPerplexity:
        sums = torch.zeros(2, dtype=torch.float64)
        rows = plan(self.dev.lengths, self.config.language.batch_tokens, 0, 0)
        for numbers in rows[ranks.rank :: ranks.count]:
            batch = collate([self.dev[n] for n in numbers], self.vocabulary.end)
            total, tokens = token_losses(self.model, self._to_device(batch))
            sums += torch.tensor([float(total), tokens], dtype=torch.float64)
        total_loss, total_tokens = ranks.total(sums).tolist()
        return DevPerplexity.of(total_loss, int(total_tokens), self.dev.words + len(self.dev))

    def card(self, progress: TrainingProgress, result: DevPerplexity) -> str:
        texts = (len(self.train), self.train.words)
        return language_model_card(self.config, self.vocabulary, self.model, texts, progress, result._asdict())

    def next_command(self, model: Path) -> str:
        return shlex.join(["headsync", "perplexity", str(model), self.config.data.dev or self.config.data.train])

    def rows(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, which is a whole pass over the text or an even part of one."""
        settings, parts = self.config.training, self.config.training.epochs_per_pass
        whole_pass, part = divmod(epoch, parts)
        rows = plan(self.train.lengths, self.config.language.batch_tokens, settings.seed, whole_pass)
        return part_of_pass(rows, part, parts)

    def share(self, numbers: Sequence[int], split: Split) -> Share[Sentences]:
        """The part of a batch that one process computes."""
        rows, weights = split.weighted(numbers, self._tokens)
        parts = [collate([self.train[n] for n in part], self.vocabulary.end) for part in rows]
        return Share(parts, weights, sum(self._tokens(part) for part in rows))

    def _tokens(self, numbers: Sequence[int]) -> int:
        """Tokens of these sentences, ends included."""
        return sum(len(self.train[n]) + 1 for n in numbers)

    def _to_device(self, part: Sentences) -> Sentences:
        return Sentences(*(tensor.to(self.model.output.weight.device) for tensor in part))


def start(config: Config, say: Say, ranks: Ranks = ALONE) -> Trainer[Sentences, DevPerplexity]:
    """Read the texts, build the network, and load the last checkpoint if there is one."""
    train_texts, dev_texts = _read_texts(config)
    vocabulary = ranks.shared(lambda: _vocabulary(config, train_texts))
    config = replace(config, data=replace(config.data, tokens=vocabulary.kind))
    train_set, dev_set = (_encode(texts, vocabulary, say) for texts in (train_texts, dev_texts))
    torch.manual_seed(config.training.seed)
    model = LanguageNetwork(config.language, vocabulary.size).to(ranks.device)
    folder = check_folder(config, vocabulary)
    trainer = Trainer(LmTask(config, vocabulary, model, _optimiser(config, model), train_set, dev_set), ranks, say)
    if ranks.first:
        with checksummed(trainer.model_folder):  # a resumed run has weights there already
            save_language_folder(trainer.model_folder, config, vocabulary)
    parameters = sum(p.numel() for p in model.parameters())
    sizes = f"{parameters / 1e6:.2f} M parameters, {len(train_set)} sentences, {train_set.words} words"
    say(f"{sizes}, {vocabulary.size} classes, in {folder}")
    return trainer


def plan(lengths: npt.NDArray[np.int64], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches as lists of indices: similar lengths, at most `batch_tokens` with padding and sentence ends."""
    return grouped(lengths, lengths + 1, batch_tokens, (seed, epoch))


def collate(sentences: Sequence[npt.NDArray[np.int32]], end: int) -> Sentences:
    """Sentences of different lengths to padded tensors."""
    return Sentences(*inputs_and_targets(sentences, end))


def token_losses(model: nn.Module, batch: Sentences) -> tuple[Tensor, int]:
    """The summed negative log probability of the sentences, and the number of their tokens, ends included."""
    logits = model(batch.tokens_BL).flatten(0, 1)
    total = F.cross_entropy(logits, batch.targets_BL.flatten(), ignore_index=PADDING, reduction="sum")
    return total, int((batch.targets_BL != PADDING).sum())


def _read_texts(config: Config) -> tuple[Sequence[str], Sequence[str]]:
    """Sentences to learn from and to evaluate on."""
    if not config.data.train:
        raise ConfigError("data.train is not set; name a text file with one sentence per line")
    sentences = read_sentences(Path(config.data.train))
    if config.data.dev:
        return sentences, read_sentences(Path(config.data.dev))
    return split_off(sentences, HELD_OUT)


def _vocabulary(config: Config, sentences: Sequence[str]) -> Vocabulary:
    """The recogniser's vocabulary, if one is named, else one built from the text."""
    if config.language.vocabulary_from:
        return Vocabulary.load(find(config.language.vocabulary_from) / VOCABULARY)
    if config.data.tokens == "words":
        return word_vocabulary(sentences)
    return build_vocabulary(config.data, sentences)


def _encode(sentences: Sequence[str], vocabulary: Vocabulary, say: Say) -> Corpus:
    corpus, strange = encode(sentences, vocabulary)
    if not len(corpus):
        vocabulary.encode(sentences[0])  # raises the reason
        raise DataError("no usable sentence; check data.train and data.dev")
    if strange:
        say(f"left out {len(strange)} of {len(sentences)} sentences, with characters outside the vocabulary")
    return corpus


def _optimiser(config: Config, model: LanguageNetwork) -> Optimiser:
    if config.language.optimiser == "sgd":
        return torch.optim.SGD(model.parameters(), lr=config.language.rate)
    return torch.optim.Adam(model.parameters(), lr=config.language.rate)


def _figures(means: Mapping[str, float]) -> str:
    return f"loss {means['loss']:.3f} perplexity {_exp(means['loss']):.2f}"


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
