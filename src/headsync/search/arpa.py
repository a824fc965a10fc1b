"""Back-off language models from ARPA files, as other toolkits write them.

    log p(w | h) = what the file says of "h w"                            where it says something
                   back-off(h) + log p(w | h without its first word)     otherwise

Whole vectors of log p are made and kept for the contexts that are met: the vector of the shorter context plus the
back-off, overlaid by what the file says of this one. "<s>" and "</s>" are the one id that starts and ends a sentence;
a token that the file does not have is its "<unk>". Logarithms are natural here, and to base ten in the file.

Shapes: B rows, N = order - 1 tokens of context, V classes (0 is blank).
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
import zlib
from collections.abc import Generator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headsync.engine import IntArray, State
from headsync.errors import ModelError
from headsync.search.scorers import Scores
from headsync.tokens import UNKNOWN, Vocabulary

START, END = "<s>", "</s>"
NOTHING = -1  # in the state: no token here
KEPT_NUMBERS = 1 << 24  # in all vectors that are kept together, 128 MB
LN10 = math.log(10)
LEAST = -99.0  # how these files write log 0; less than that would leave a search without any text
Lines = Generator[tuple[int, str]]


class Gram(NamedTuple):
    """One line of a file, in natural logarithms."""

    words: tuple[str, ...]
    log_p: float
    back_off: float


class Context:
    """What the file says of the tokens after some others."""

    def __init__(self) -> None:
        self.back_off = 0.0
        self.tokens: list[int] = []
        self.log_p: list[float] = []


class ArpaModel:
    """A back-off model over the tokens of a vocabulary; its state is the last tokens of each row."""

    def __init__(self, contexts: dict[tuple[int, ...], Context], order: int, place_V: IntArray) -> None:
        self.contexts, self.order, self.place_V = contexts, order, place_V
        self.vector = lru_cache(max(64, KEPT_NUMBERS // len(place_V)))(self._vector)

    @classmethod
    def load(cls, path: Path, vocabulary: Vocabulary) -> ArpaModel:
        """The n-grams that consist of the vocabulary's tokens; the others can never come up."""
        place_V = _places(path, vocabulary)
        places = {token: n for n, token in enumerate(vocabulary.tokens, 1)}
        ids = {token: [n] for token, n in places.items()}
        ids |= {UNKNOWN: np.flatnonzero(place_V == vocabulary.size).tolist(), START: [], END: [vocabulary.end]}
        places |= {UNKNOWN: vocabulary.size, START: vocabulary.end, END: NOTHING}  # nothing follows the end
        contexts: dict[tuple[int, ...], Context] = {(): Context()}
        order = 1
        for words, log_p, back_off in read_grams(path):
            order = max(order, len(words))
            if all(word in places for word in words):
                *before, last = (places[word] for word in words)
                here = contexts.setdefault(tuple(before), Context())
                here.tokens += ids[words[-1]]
                here.log_p += [log_p] * len(ids[words[-1]])
                if back_off:
                    contexts.setdefault((*before, last), Context()).back_off = back_off
        return cls(contexts, order, place_V)

    def start(self, batch: int) -> State:
        return (np.full((batch, self.order - 1), NOTHING),)

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        (context_BN,) = state
        context_BN = np.concatenate([context_BN, self.place_V[tokens_B, None]], axis=1)[:, 1:]
        return np.array([self.vector(self._known(row)) for row in context_BN.tolist()]), (context_BN,)

    def _known(self, tokens: list[int]) -> tuple[int, ...]:
        """The longest context, at the end of these tokens, of which the file says something."""
        context = tuple(token for token in tokens if token != NOTHING)
        while context not in self.contexts:
            context = context[1:]
        return context

    def _vector(self, context: tuple[int, ...]) -> Scores:
        here = self.contexts[context]
        shorter = self.vector(self._known(list(context[1:]))) if context else np.full(len(self.place_V), -np.inf)
        log_p_V = shorter + here.back_off
        log_p_V[here.tokens] = here.log_p
        return log_p_V


def words_of(path: Path) -> set[str]:
    """The words of a file, its signs for the start, the end and the unknown among them."""
    with closing(read_grams(path)) as grams:
        return {gram.words[0] for gram in itertools.takewhile(lambda gram: len(gram.words) == 1, grams)}


def read_grams(path: Path) -> Generator[Gram]:
    """All n-grams of a file, the short ones first; what is wrong with it is told with its line."""
    with closing(_lines(path)) as lines:
        counts = _counts(path, lines)
        order, left = 1, counts[0]
        for number, line in lines:
            if not line.startswith("\\"):
                left -= 1
                yield _gram(path, number, line, order)
                continue
            if left:
                told = f"there are {counts[order - 1] - left} {order}-grams, not {counts[order - 1]}"
                raise _wrong(path, number, told)
            if line == "\\end\\" and order == len(counts):
                return
            if line != f"\\{order + 1}-grams:" or order == len(counts):
                raise _wrong(path, number, f'"{line}" comes where {_next(order, len(counts))} is expected')
            order, left = order + 1, counts[order]
    raise _wrong(path, None, "it ends before \\end\\")


def _next(order: int, orders: int) -> str:
    return "\\end\\" if order == orders else f"\\{order + 1}-grams:"


def _counts(path: Path, lines: Lines) -> list[int]:
    """How many n-grams of each order there shall be: the lines from \\data\\ to \\1-grams:."""
    counts: list[int] = []
    if not any(line == "\\data\\" for _, line in lines):
        raise _wrong(path, None, "there is no \\data\\ in it, so it is not an ARPA file")
    for number, line in lines:
        if line == "\\1-grams:" and counts:
            return counts
        found = re.fullmatch(rf"ngram\s+{len(counts) + 1}\s*=\s*(\d+)", line)
        if not found:
            raise _wrong(path, number, f'"{line}" comes where "ngram {len(counts) + 1}=..." is expected')
        counts.append(int(found[1]))
    raise _wrong(path, None, "it ends before \\1-grams:")


def _gram(path: Path, number: int, line: str, order: int) -> Gram:
    fields = line.split()
    if len(fields) not in (order + 1, order + 2):
        raise _wrong(path, number, f"a {order}-gram has a number, {order} words and perhaps a back-off")
    try:
        log_p, back_off = float(fields[0]), float(fields[order + 1]) if len(fields) > order + 1 else 0.0
    except ValueError:
        raise _wrong(path, number, f'the logarithms of "{line}" are not numbers') from None
    if not log_p <= 0 or not math.isfinite(back_off):
        raise _wrong(path, number, f'"{line}" is no logarithm of a probability with its back-off')
    return Gram(tuple(map(_sign, fields[1 : order + 1])), max(log_p, LEAST) * LN10, back_off * LN10)


def _sign(word: str) -> str:
    return word.lower() if word in ("<UNK>", "<S>", "</S>") else word


def _places(path: Path, vocabulary: Vocabulary) -> IntArray:
    """For each id of the vocabulary the one that stands for it in contexts: `vocabulary.size` for unknown tokens."""
    words = words_of(path)
    if END not in words:
        raise _wrong(path, None, f"there is no {END} in it, so that no text could end")
    unknown = [token for token in vocabulary.tokens if token not in words and token != UNKNOWN]
    if len(unknown) > (len(vocabulary.tokens) // 2 if UNKNOWN in words else 0):
        shown = ", ".join(repr(token) for token in unknown[:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise ModelError(f"{path}: does not fit the recogniser: it lacks its tokens {shown}{more}")
    strange = {UNKNOWN, *unknown}
    return np.array([0, *(vocabulary.size if t in strange else n for n, t in enumerate(vocabulary.tokens, 1)),
                     vocabulary.end])  # fmt: skip


def _lines(path: Path) -> Lines:
    """The lines of a file that are not empty, with their numbers."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line := line.strip():
                    yield number, line
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such language model") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not a text in UTF-8, so it is not an ARPA file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from None


def _wrong(path: Path, number: int | None, trouble: str) -> ModelError:
    where = "" if number is None else f"line {number}: "
    return ModelError(f"{path}: {where}{trouble}; write or fetch the file again")
