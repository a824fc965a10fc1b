"""Perplexity of a language model per token and per word, computed with the scorer that recognition uses.

Sentence ends count as tokens and as words. Shapes: B rows, L output steps, V classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headsync.corpora.lm_text import Corpus, encode
from headsync.engine.state_tree import take_rows
from headsync.errors import DataError
from headsync.lm import LanguageModel
from headsync.text.vocabulary import UNKNOWN, Vocabulary

ROWS = 32  # sentences scored together


@dataclass(frozen=True)
class Perplexity:
    sentences: int
    left_out: int  # sentences with characters outside the vocabulary
    words: int
    tokens: int
    unknown: int  # tokens that are <unk>
    log_p: float  # of all sentences together

    @property
    def per_token(self) -> float:
        return self._of(self.tokens)

    @property
    def per_word(self) -> float:
        return self._of(self.words)

    def _of(self, count: int) -> float:
        mean = -self.log_p / (count + self.sentences)
        return math.exp(mean) if mean < 700 else math.inf


def perplexity(
    model: LanguageModel, vocabulary: Vocabulary, sentences: Sequence[str], progress: Callable[[int, int], None]
) -> Perplexity:
    """Score all sentences within the vocabulary."""
    corpus, strange = encode(sentences, vocabulary)
    if not len(corpus):
        vocabulary.encode(sentences[0])  # raises the error
        raise DataError("no sentence is within the vocabulary")
    order = np.argsort(corpus.lengths, kind="stable").tolist()
    log_p = 0.0
    for first in range(0, len(order), ROWS):
        log_p += _score(model, corpus, order[first : first + ROWS], vocabulary.end)
        progress(min(first + ROWS, len(order)), len(order))
    unknown = int((corpus.ids == vocabulary.tokens.index(UNKNOWN) + 1).sum()) if UNKNOWN in vocabulary.tokens else 0
    return Perplexity(len(corpus), len(strange), corpus.words, len(corpus.ids), unknown, log_p)


def _score(model: LanguageModel, corpus: Corpus, numbers: Sequence[int], end: int) -> float:
    """Log probability of sentences in order of length; a row is removed when its sentence ends."""
    rows = [[*corpus[number].tolist(), end] for number in numbers]
    state, tokens, total = model.start(len(rows)), [end] * len(rows), 0.0
    while rows:
        scores, state = model.step(np.array(tokens), state)
        tokens = [row.pop(0) for row in rows]
        total += float(scores[np.arange(len(rows)), tokens].sum())
        left = [n for n, row in enumerate(rows) if row]
        rows, tokens, state = [rows[n] for n in left], [tokens[n] for n in left], take_rows(state, left)
    return total
