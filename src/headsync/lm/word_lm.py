"""A word language model that scores characters, for recognisers that write characters.

Inside a word, the score of a character is a ratio: the probability of all words that begin with the longer prefix over
that of all words that begin with the shorter one (look-ahead). At the end of a word, a space or <eos>, it is the
probability of the word over that of its prefix. So the scores of a word multiply to the model's probability of the
word, and those of a sentence to its probability of the sentence; a space implies that the sentence continues.

The words with a prefix are a range of the sorted list of words; the ranges of its extensions are parts of that range.

Words outside the list share the probability of <unk>: each of their characters, and their end, costs `penalty`, the
logarithm of the number of characters. So no spelling is impossible. Whether the sentence ends after such a word is
judged by the words before it. Two spaces in a row contain an unknown word without characters.

Shapes: B rows, V classes of characters (0 is blank), W words, D depth of the longest word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headsync.engine import IntArray, State
from headsync.engine.state_tree import put_rows, take_rows
from headsync.errors import DataError, ModelError
from headsync.lm import LanguageModel, Scores
from headsync.text.vocabulary import SPACE, UNKNOWN, Vocabulary

_WORD_END = -1  # after the last character of a word; sorts before all characters
LEAST_UNKNOWN = 1e-6  # lower bound of the probability of all unknown words together
_LEAST_END = 1e-12  # lower bound of the probability that a sentence ends, or continues, after a word
_CACHED_RANGES = 1 << 16


@dataclass(frozen=True)
class _NextWord:
    """Probabilities of the next word after some words."""

    words_W: Scores  # in the order of `SpelledWords`
    unknown: float
    end: float  # of the sentence


@dataclass(frozen=True)
class _SpelledPrefix:
    """The word that a row is spelling; words `first` to `last`, exclusive, begin with this prefix."""

    next_word: _NextWord | None = None  # after the last whole word
    after_word: _NextWord | None = None  # after the word of this prefix, if it is a word
    first: int = 0
    last: int = 0
    depth: int = 0  # characters of the prefix
    log_p: float = 0.0  # of the prefix; the scores of what follows are divided by it
    has_words: bool = False  # whether the sentence has a word before this one


class _SpellingState(NamedTuple):
    history: State  # of the word model, after the last whole word
    ahead: State  # the same after the word being spelled, if it is a word
    prefix_B: npt.NDArray[np.object_]


@dataclass(frozen=True)
class _SpelledWords:
    """The words that the characters can spell, sorted; word n has the id `ids_W[n]`."""

    letters_WD: npt.NDArray[np.int32]  # ids of characters, then WORD_END
    ids_W: IntArray

    @classmethod
    def of(cls, words: Vocabulary, characters: Vocabulary) -> _SpelledWords:
        spelled = sorted(
            (letters, number) for number, word in enumerate(words.tokens, 1) if (letters := _letters(word, characters))
        )
        if not spelled:
            raise ModelError(
                "the recogniser's characters spell no word of the language model; check upper and lower case"
            )
        letters_WD = np.full((len(spelled), max(len(letters) for letters, _ in spelled) + 1), _WORD_END, np.int32)
        for row, (letters, _) in enumerate(spelled):
            letters_WD[row, : len(letters)] = letters
        return cls(letters_WD, np.array([number for _, number in spelled]))

    def parts(self, first: int, last: int, depth: int) -> tuple[IntArray, IntArray]:
        """The characters that follow a prefix, in order, and where the words with each of them start."""
        following = self.letters_WD[first:last, depth]
        starts = np.flatnonzero(np.diff(following, prepend=_WORD_END - 1))
        return following[starts].astype(np.int64), first + starts


class WordsOverCharacters:
    """A `LanguageModel` over characters, computed from one over words."""

    def __init__(self, model: LanguageModel, words: Vocabulary, characters: Vocabulary) -> None:
        self.model, self.spelled = model, _SpelledWords.of(words, characters)
        self.penalty = math.log(len(characters.tokens))
        self.unknown, self.words_end = words.tokens.index(UNKNOWN) + 1, words.end
        self.space, self.end, self.size = characters.tokens.index(SPACE) + 1, characters.end, characters.size
        self.parts = lru_cache(_CACHED_RANGES)(self.spelled.parts)

    def start(self, batch: int) -> State:
        state = self.model.start(batch)
        return _SpellingState(state, state, np.array([_SpelledPrefix()] * batch, dtype=object))

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        """Advance every row by its character, query the word model where a word may have ended, and score."""
        history, ahead, prefix_B = state
        over = [n for n, prefix in enumerate(prefix_B) if tokens_B[n] == self.space and prefix.after_word]
        history = put_rows(history, over, take_rows(ahead, over))
        prefixes, words = zip(*map(self._advance, prefix_B, tokens_B.tolist()), strict=True)
        asked = [n for n, word in enumerate(words) if word is not None]
        if asked:
            log_p, after = self.model.step(np.array([words[n] for n in asked]), take_rows(history, asked))
            prefixes = _with_next_words(prefixes, asked, [self._next_word(log_p_V) for log_p_V in log_p])
            inside = [k for k, n in enumerate(asked) if prefixes[n].depth]
            between = [k for k, n in enumerate(asked) if not prefixes[n].depth]
            ahead = put_rows(ahead, [asked[k] for k in inside], take_rows(after, inside))
            history = put_rows(history, [asked[k] for k in between], take_rows(after, between))
        scores = np.array([self._scores(prefix) for prefix in prefixes])
        return scores, _SpellingState(history, ahead, np.array(prefixes, dtype=object))

    def _advance(self, prefix: _SpelledPrefix, token: int) -> tuple[_SpelledPrefix, int | None]:
        """A row after its character, and the word to query the model with, if any."""
        whole = _SpelledPrefix(last=len(self.spelled.ids_W))
        if token == self.end:
            return whole, self.words_end
        assert prefix.next_word
        if token != self.space:
            return self._extend(prefix, token)
        if not prefix.depth:
            return prefix, None
        after = prefix.after_word or prefix.next_word
        begun = replace(whole, next_word=after, log_p=math.log1p(-after.end), has_words=True)
        return begun, None if prefix.after_word else self.unknown

    def _extend(self, prefix: _SpelledPrefix, token: int) -> tuple[_SpelledPrefix, int | None]:
        """A prefix with one more character; if it is a word, the model is queried for what may follow."""
        assert prefix.next_word
        first, last = self._narrow(prefix, token)
        depth = prefix.depth + 1
        known = float(prefix.next_word.words_W[first:last].sum())
        log_p = float(np.logaddexp(_log(known), self._unknown(prefix.next_word, depth)))
        whole = first < last and self.spelled.letters_WD[first, depth] == _WORD_END
        moved = replace(prefix, first=first, last=last, depth=depth, log_p=log_p, after_word=None)
        return moved, int(self.spelled.ids_W[first]) if whole else None

    def _narrow(self, prefix: _SpelledPrefix, token: int) -> tuple[int, int]:
        """The words of a range whose next character is the given one; an empty range if there is none."""
        if prefix.first == prefix.last:
            return 0, 0
        characters, starts = self.parts(prefix.first, prefix.last, prefix.depth)
        found = int(np.searchsorted(characters, token))
        if found == len(characters) or characters[found] != token:
            return 0, 0
        return int(starts[found]), int(starts[found + 1]) if found + 1 < len(starts) else prefix.last

    def _next_word(self, log_p_V: Scores) -> _NextWord:
        unknown = max(LEAST_UNKNOWN, math.exp(log_p_V[self.unknown]))
        end = min(max(_LEAST_END, math.exp(log_p_V[self.words_end])), 1 - _LEAST_END)
        return _NextWord(np.exp(log_p_V[self.spelled.ids_W]), unknown, end)

    def _scores(self, prefix: _SpelledPrefix) -> Scores:
        """Log p of every character, the space and the end after a prefix."""
        next_word = prefix.next_word
        assert next_word
        unknown = self._unknown(next_word, prefix.depth + 1)
        scores_V = np.full(self.size, unknown)
        scores_V[0] = -np.inf
        if prefix.first < prefix.last:
            characters, starts = self.parts(prefix.first, prefix.last, prefix.depth)
            known = np.add.reduceat(next_word.words_W[prefix.first : prefix.last], starts - prefix.first)
            known, characters = known[characters != _WORD_END], characters[characters != _WORD_END]
            scores_V[characters] = np.logaddexp(_log(known), unknown)
        scores_V[[self.space, self.end]] = self._ends(prefix, next_word, unknown)
        return scores_V - prefix.log_p

    def _ends(self, prefix: _SpelledPrefix, next_word: _NextWord, unknown: float) -> tuple[float, float]:
        """Log p of the word and a space, and of the word and the end of the sentence."""
        if not prefix.depth:
            return unknown, unknown if prefix.has_words else math.log(next_word.end)
        after, word = next_word, unknown
        if prefix.after_word:
            after, word = prefix.after_word, float(_log(next_word.words_W[prefix.first]))
        return word + math.log1p(-after.end), word + math.log(after.end)

    def _unknown(self, next_word: _NextWord, depth: int) -> float:
        """Log probability that an unknown word comes and begins with a given prefix."""
        return math.log(next_word.unknown) - depth * self.penalty


def _with_next_words(
    prefixes: Sequence[_SpelledPrefix], rows: Sequence[int], next_words: Sequence[_NextWord]
) -> tuple[_SpelledPrefix, ...]:
    """Store the model's answers: inside a word for after the word, between words for the next word."""
    updated = list(prefixes)
    for row, next_word in zip(rows, next_words, strict=True):
        prefix = updated[row]
        updated[row] = replace(prefix, after_word=next_word) if prefix.depth else replace(prefix, next_word=next_word)
    return tuple(updated)


def _letters(word: str, characters: Vocabulary) -> list[int]:
    """The ids that spell a word; empty if that is impossible."""
    try:
        return [] if word == UNKNOWN else characters.encode(word)
    except DataError:
        return []


def _log(p: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(p)
