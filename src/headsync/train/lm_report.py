"""What the training of a language model tells: its figures while it runs, and the card of what came out."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from headsync.config import Config
from headsync.tokens import Vocabulary
from headsync.train.checkpoint import Progress
from headsync.train.report import Mute, Report


class LanguageLosses(NamedTuple):
    """Means over the tokens of a text, sentence ends included, in natural logarithms."""

    loss: float  # of a token
    perplexity: float  # of a token
    word_perplexity: float  # of a word; its space or the end of the sentence is part of it

    @classmethod
    def of(cls, total: float, tokens: int, words: int) -> LanguageLosses:
        """From the sum over `tokens`, which spell `words`; both count sentence ends."""
        return cls(total / tokens, _exp(total / tokens), _exp(total / words))


class LanguageReport(Report):
    """As a recogniser's report, with perplexity in place of errors and attention."""

    def learned(self, progress: Progress, loss: float, tokens: int) -> None:
        """One update was made."""
        self._updated(progress, {"loss": loss}, tokens)

    def measured(self, progress: Progress, result: LanguageLosses) -> None:
        """An epoch was measured."""
        text = f"perplexity {result.perplexity:.2f}, per word {result.word_perplexity:.1f}"
        self._measured(progress, result._asdict(), text)

    def _text(self, progress: Progress) -> str:
        loss, speed = self.means["loss"], self.amount / (time.monotonic() - self.since)
        return (
            f"epoch {progress.epoch + 1} update {progress.update}  loss {loss:.3f}  perplexity {_exp(loss):.2f}  "
            f"{speed:.0f} tokens/s"
        )


class MuteLanguageReport(Mute, LanguageReport):
    """The report of a process that is not the first of its run."""


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


CARD = """\
# {name}

A language model (LSTM, {layers} x {width}, {parameters:.2f} M parameters, {classes} output classes: {kind}).

| | |
|---|---|
| trained on | `{train}`, {sentences} sentences, {words} words, seed {seed} |
| training | {updates} updates, {epochs} epochs, the {averaged} best averaged |
| measured on | {dev} |
| there, after the last epoch | perplexity {perplexity:.2f} per token, {word_perplexity:.1f} per word |

Before you pass this model on, say here which texts it was trained on, under which licence they are, and what the model
should not be used for.
"""


def card(
    config: Config, vocabulary: Vocabulary, parameters: int, learned_from: tuple[int, int], progress: Progress,
    result: LanguageLosses,
) -> str:  # fmt: skip
    """The text of the card; `learned_from` are sentences and words."""
    language = config.language
    return CARD.format(
        name=config.training.folder.rstrip("/").split("/")[-1],
        layers=language.layers,
        width=language.width,
        parameters=parameters / 1e6,
        classes=vocabulary.size,
        kind=vocabulary.kind,
        train=config.data.train,
        sentences=learned_from[0],
        words=learned_from[1],
        seed=config.training.seed,
        updates=progress.update,
        epochs=progress.epoch,
        averaged=len(progress.best),
        dev=f"`{config.data.dev}`" if config.data.dev else f"the last {language.held_out:.1%} of it",
        perplexity=result.perplexity,
        word_perplexity=result.word_perplexity,
    )
