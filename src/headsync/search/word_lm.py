"""A model of words that scores characters, so that a recogniser of characters can be helped by it letter by letter.

Inside a word the score of a character is a ratio: how probable all words are that begin with the longer prefix, over
how probable those are that begin with the shorter one (look-ahead). At the end of the word, a space or <eos>, it is the
word's own probability over that of its prefix. So the scores of a whole word multiply to what the model gives the word,
and those of a sentence to what it gives the sentence; a space carries that the sentence goes on.

The words with a prefix are a range of the sorted list of words, the ranges of its extensions parts of it.

Words that are not in the list share the probability u of <unk>: each of their characters, and their end, costs
`penalty`, by default the logarithm of how many characters there are. So no spelling is impossible. Whether the
sentence ends after such a word is judged by what preceded the word; and where nothing is spelled, as between two
spaces, that is an unknown word without characters.

Shapes: B rows, V classes of characters (0 is blank), W words, D depth of the longest word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from headsync.engine import IntArray, State
from headsync.errors import DataError, ModelError
from headsync.search.scorers import LanguageModel, Scores
from headsync.streaming import take_rows
from headsync.tokens import SPACE, UNKNOWN, Vocabulary

S = TypeVar("S")

NO_MORE = -1  # behind the last character of a word; sorts before all characters
LEAST_UNKNOWN = 1e-6  # the probability of unknown words together, where the model gives less or none
LEAST_END = 1e-12  # of a sentence to end, and to go on, after a word
KEPT_RANGES = 1 << 16


@dataclass(frozen=True)
class Outlook:
    """What the model expects after some words: probabilities."""

    words_W: Scores  # of the words, in the order in which they are sorted here
    unknown: float
    end: float  # of the sentence


@dataclass(frozen=True)
class Place:
    """Where a row stands; its prefix is that of the words from `first` to `last`, exclusive."""

    outlook: Outlook | None = None  # after the last whole word
    beyond: Outlook | None = None  # and after the word of this prefix, where it is one
    first: int = 0
    last: int = 0
    depth: int = 0  # characters of the prefix
    mass: float = 0.0  # log probability of the prefix, by which what follows is divided
    begun: bool = False  # whether the sentence has a word already


class Spelling(NamedTuple):
    """The state of this scorer."""

    history: State  # of the model of words, after the last whole word
    ahead: State  # the same after the word that is being spelled, where that is one
    place_B: npt.NDArray[np.object_]


@dataclass(frozen=True)
class Spelt:
    """The words that the characters can spell, sorted; word n has the id `ids_W[n]`."""

    letters_WD: npt.NDArray[np.int32]  # ids of characters, then NO_MORE
    ids_W: IntArray

    @classmethod
    def of(cls, words: Vocabulary, characters: Vocabulary) -> Spelt:
        spelt = sorted(
            (letters, number) for number, word in enumerate(words.tokens, 1) if (letters := _letters(word, characters))
        )
        if not spelt:
            raise ModelError("the recogniser's characters spell no word of the language model; is one in upper case?")
        letters_WD = np.full((len(spelt), max(len(letters) for letters, _ in spelt) + 1), NO_MORE, np.int32)
        for row, (letters, _) in enumerate(spelt):
            letters_WD[row, : len(letters)] = letters
        return cls(letters_WD, np.array([number for _, number in spelt]))

    def parts(self, first: int, last: int, depth: int) -> tuple[IntArray, IntArray]:
        """The characters that follow a prefix, in order, and where the words with each of them start."""
        following = self.letters_WD[first:last, depth]
        starts = np.flatnonzero(np.diff(following, prepend=NO_MORE - 1))
        return following[starts].astype(np.int64), first + starts


class WordsOverCharacters:
    """A `LanguageModel` over characters, made of one over words."""

    def __init__(self, model: LanguageModel, words: Vocabulary, characters: Vocabulary, penalty: float) -> None:
        self.model, self.spelt, self.penalty = model, Spelt.of(words, characters), penalty
        self.unknown, self.words_end = words.tokens.index(UNKNOWN) + 1, words.end
        self.space, self.end, self.size = characters.tokens.index(SPACE) + 1, characters.end, characters.size
        self.parts = lru_cache(KEPT_RANGES)(self.spelt.parts)

    @classmethod
    def build(cls, model: LanguageModel, words: Vocabulary, characters: Vocabulary) -> WordsOverCharacters:
        """With the usual penalty for unknown words."""
        return cls(model, words, characters, math.log(len(characters.tokens)))

    def start(self, batch: int) -> State:
        state = self.model.start(batch)
        return Spelling(state, state, np.array([Place()] * batch, dtype=object))

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        """Move every row by its character, ask the model of words where a word may have ended, and score."""
        history, ahead, place_B = state
        over = [n for n, place in enumerate(place_B) if tokens_B[n] == self.space and place.beyond]
        history = _put_rows(history, over, take_rows(ahead, over))
        places, words = zip(*map(self._moved, place_B, tokens_B.tolist()), strict=True)
        asked = [n for n, word in enumerate(words) if word is not None]
        if asked:
            log_p, after = self.model.step(np.array([words[n] for n in asked]), take_rows(history, asked))
            places = _with_outlooks(places, asked, [self._outlook(log_p_V) for log_p_V in log_p])
            inside = [k for k, n in enumerate(asked) if places[n].depth]
            between = [k for k, n in enumerate(asked) if not places[n].depth]
            ahead = _put_rows(ahead, [asked[k] for k in inside], take_rows(after, inside))
            history = _put_rows(history, [asked[k] for k in between], take_rows(after, between))
        scores = np.array([self._scores(place) for place in places])
        return scores, Spelling(history, ahead, np.array(places, dtype=object))

    def _moved(self, place: Place, token: int) -> tuple[Place, int | None]:
        """A row after its character, and which word the model has to be given to know more, if any."""
        whole = Place(last=len(self.spelt.ids_W))
        if token == self.end:
            return whole, self.words_end
        assert place.outlook
        if token != self.space:
            return self._longer(place, token)
        if not place.depth:
            return place, None
        if place.beyond:
            return replace(whole, outlook=place.beyond, mass=math.log1p(-place.beyond.end), begun=True), None
        return replace(whole, outlook=place.outlook, mass=math.log1p(-place.outlook.end), begun=True), self.unknown

    def _longer(self, place: Place, token: int) -> tuple[Place, int | None]:
        """A prefix with one more character; where it is a word, the model is asked what may follow that."""
        assert place.outlook
        first, last = self._narrowed(place, token)
        depth = place.depth + 1
        known = float(place.outlook.words_W[first:last].sum())
        mass = float(np.logaddexp(_log(known), self._unknown(place.outlook, depth)))
        whole = first < last and self.spelt.letters_WD[first, depth] == NO_MORE
        moved = replace(place, first=first, last=last, depth=depth, mass=mass, beyond=None)
        return moved, int(self.spelt.ids_W[first]) if whole else None

    def _narrowed(self, place: Place, token: int) -> tuple[int, int]:
        """The words of a range whose next character is the given one; an empty range if there is none."""
        if place.first == place.last:
            return 0, 0
        characters, starts = self.parts(place.first, place.last, place.depth)
        found = int(np.searchsorted(characters, token))
        if found == len(characters) or characters[found] != token:
            return 0, 0
        return int(starts[found]), int(starts[found + 1]) if found + 1 < len(starts) else place.last

    def _outlook(self, log_p_V: Scores) -> Outlook:
        unknown = max(LEAST_UNKNOWN, math.exp(log_p_V[self.unknown]))
        end = min(max(LEAST_END, math.exp(log_p_V[self.words_end])), 1 - LEAST_END)
        return Outlook(np.exp(log_p_V[self.spelt.ids_W]), unknown, end)

    def _scores(self, place: Place) -> Scores:
        """Log p of every character, the space and the end after a prefix."""
        outlook = place.outlook
        assert outlook
        unknown = self._unknown(outlook, place.depth + 1)
        scores_V = np.full(self.size, unknown)
        scores_V[0] = -np.inf
        if place.first < place.last:
            characters, starts = self.parts(place.first, place.last, place.depth)
            known = np.add.reduceat(outlook.words_W[place.first : place.last], starts - place.first)
            known, characters = known[characters != NO_MORE], characters[characters != NO_MORE]
            scores_V[characters] = np.logaddexp(_log(known), unknown)
        scores_V[[self.space, self.end]] = self._ends(place, outlook, unknown)
        return scores_V - place.mass

    def _ends(self, place: Place, outlook: Outlook, unknown: float) -> tuple[float, float]:
        """Log p of the word and a space, and of the word and the end of the sentence."""
        if not place.depth:
            return unknown, unknown if place.begun else math.log(outlook.end)
        after, word = outlook, unknown
        if place.beyond:
            after, word = place.beyond, float(_log(outlook.words_W[place.first]))
        return word + math.log1p(-after.end), word + math.log(after.end)

    def _unknown(self, outlook: Outlook, depth: int) -> float:
        """Log probability that an unknown word comes and begins with a given prefix."""
        return math.log(outlook.unknown) - depth * self.penalty


def _with_outlooks(places: Sequence[Place], rows: Sequence[int], outlooks: Sequence[Outlook]) -> tuple[Place, ...]:
    """Inside a word the answer is what may follow it; between words it is what comes next."""
    told = list(places)
    for row, outlook in zip(rows, outlooks, strict=True):
        place = told[row]
        told[row] = replace(place, beyond=outlook) if place.depth else replace(place, outlook=outlook)
    return tuple(told)


def _letters(word: str, characters: Vocabulary) -> list[int]:
    """The ids that spell a word, none where that is not possible."""
    try:
        return [] if word == UNKNOWN else characters.encode(word)
    except DataError:
        return []


def _put_rows(tree: S, rows: Sequence[int], values: S) -> S:
    """A state tree with some of its rows replaced."""
    node: Any = tree
    new: Any = values
    if isinstance(node, tuple):
        parts = [_put_rows(part, rows, other) for part, other in zip(node, new, strict=True)]
        return type(node)(*parts) if hasattr(node, "_fields") else type(node)(parts)  # type: ignore[return-value]
    node = node.copy()
    node[list(rows)] = new
    return node  # type: ignore[no-any-return]


def _log(p: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(p)
