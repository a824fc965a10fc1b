"""Back-off language models in ARPA files, the format of most toolkits.

    log p(w | h) = the entry "h w" of the file                            if there is one
                   back-off(h) + log p(w | h without its first word)     otherwise

Vectors of log p over the whole vocabulary are computed and cached for each context met: the vector of the shorter
context plus the back-off, overwritten by the entries of this context. "<s>" and "</s>" share the one id that starts and
ends a sentence; a token that is not in the file is its "<unk>". Logarithms are natural here, and to base ten in the
file.

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
from headsync.errors import ModelError, listed
from headsync.lm import Scores
from headsync.text.vocabulary import UNKNOWN, Vocabulary

START, END = "<s>", "</s>"
_NO_TOKEN = -1  # in a state: no token yet
_CACHED_NUMBERS = 1 << 24  # in all cached vectors together, 128 MB
LN10 = math.log(10)
_LOG10_ZERO = -99.0  # the usual value for log 0 in these files; with -inf a search could end without any text
_Lines = Generator[tuple[int, str]]


class NGram(NamedTuple):
    """One line of a file, in natural logarithms."""

    words: tuple[str, ...]
    log_p: float
    back_off: float


class Context:
    """The entries of the file after one context."""

    def __init__(self) -> None:
        self.back_off = 0.0
        self.tokens: list[int] = []
        self.log_p: list[float] = []


class ArpaModel:
    """A back-off model over the tokens of a vocabulary; its state is the last tokens of each row."""

    def __init__(self, contexts: dict[tuple[int, ...], Context], order: int, context_id_V: IntArray) -> None:
        self.contexts, self.order, self.context_id_V = contexts, order, context_id_V
        self.vector = lru_cache(max(64, _CACHED_NUMBERS // len(context_id_V)))(self._vector)

    @classmethod
    def load(cls, path: Path, vocabulary: Vocabulary) -> ArpaModel:
        """The n-grams that consist of the vocabulary's tokens; others cannot occur."""
        context_id_V = _context_ids(path, vocabulary)
        places = {token: n for n, token in enumerate(vocabulary.tokens, 1)}
        ids = {token: [n] for token, n in places.items()}
        ids |= {UNKNOWN: np.flatnonzero(context_id_V == vocabulary.size).tolist(), START: [], END: [vocabulary.end]}
        places |= {UNKNOWN: vocabulary.size, START: vocabulary.end, END: _NO_TOKEN}  # nothing follows the end
        contexts: dict[tuple[int, ...], Context] = {(): Context()}
        order = 1
        for words, log_p, back_off in read_ngrams(path):
            order = max(order, len(words))
            if all(word in places for word in words):
                *before, last = (places[word] for word in words)
                here = contexts.setdefault(tuple(before), Context())
                here.tokens += ids[words[-1]]
                here.log_p += [log_p] * len(ids[words[-1]])
                if back_off:
                    contexts.setdefault((*before, last), Context()).back_off = back_off
        return cls(contexts, order, context_id_V)

    def start(self, batch: int) -> State:
        return (np.full((batch, self.order - 1), _NO_TOKEN),)

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        (context_BN,) = state
        context_BN = np.concatenate([context_BN, self.context_id_V[tokens_B, None]], axis=1)[:, 1:]
        return np.array([self.vector(self._known(row)) for row in context_BN.tolist()]), (context_BN,)

    def _known(self, tokens: list[int]) -> tuple[int, ...]:
        """The longest context at the end of these tokens that the file has."""
        context = tuple(token for token in tokens if token != _NO_TOKEN)
        while context not in self.contexts:
            context = context[1:]
        return context

    def _vector(self, context: tuple[int, ...]) -> Scores:
        here = self.contexts[context]
        shorter = self.vector(self._known(list(context[1:]))) if context else np.full(len(self.context_id_V), -np.inf)
        log_p_V = shorter + here.back_off
        log_p_V[here.tokens] = here.log_p
        return log_p_V


def words_of(path: Path) -> set[str]:
    """The words of a file, including its markers for start, end and unknown words."""
    with closing(read_ngrams(path)) as ngrams:
        return {ngram.words[0] for ngram in itertools.takewhile(lambda ngram: len(ngram.words) == 1, ngrams)}


def read_ngrams(path: Path) -> Generator[NGram]:
    """All n-grams of a file, the short ones first; errors name the line."""
    with closing(_lines(path)) as lines:
        counts = _counts(path, lines)
        order, left = 1, counts[0]
        for number, line in lines:
            if not line.startswith("\\"):
                left -= 1
                yield _parse_ngram(path, number, line, order)
                continue
            if left:
                problem = f"there are {counts[order - 1] - left} {order}-grams, not {counts[order - 1]}"
                raise _invalid(path, number, problem)
            if line == "\\end\\" and order == len(counts):
                return
            if line != f"\\{order + 1}-grams:" or order == len(counts):
                expected = "\\end\\" if order == len(counts) else f"\\{order + 1}-grams:"
                raise _invalid(path, number, f'expected {expected}, found "{line}"')
            order, left = order + 1, counts[order]
    raise _invalid(path, None, "it ends before \\end\\")


def _counts(path: Path, lines: _Lines) -> list[int]:
    """The declared number of n-grams of each order: the lines from \\data\\ to \\1-grams:."""
    counts: list[int] = []
    if not any(line == "\\data\\" for _, line in lines):
        raise _invalid(path, None, "not an ARPA file, because it has no \\data\\")
    for number, line in lines:
        if line == "\\1-grams:" and counts:
            return counts
        found = re.fullmatch(rf"ngram\s+{len(counts) + 1}\s*=\s*(\d{{1,18}})", line)
        if not found:
            raise _invalid(path, number, f'expected "ngram {len(counts) + 1}=...", found "{line}"')
        counts.append(int(found[1]))
    raise _invalid(path, None, "it ends before \\1-grams:")


def _parse_ngram(path: Path, number: int, line: str, order: int) -> NGram:
    fields = line.split()
    if len(fields) not in (order + 1, order + 2):
        raise _invalid(path, number, f"a {order}-gram requires a number, {order} words and an optional back-off")
    try:
        log_p, back_off = float(fields[0]), float(fields[order + 1]) if len(fields) > order + 1 else 0.0
    except ValueError:
        raise _invalid(path, number, f'the logarithms of "{line}" are not numbers') from None
    if not log_p <= 0 or not math.isfinite(back_off):
        raise _invalid(path, number, f'"{line}" is not a log probability with a back-off')
    words = tuple(word.lower() if word in ("<UNK>", "<S>", "</S>") else word for word in fields[1 : order + 1])
    return NGram(words, max(log_p, _LOG10_ZERO) * LN10, back_off * LN10)


def _context_ids(path: Path, vocabulary: Vocabulary) -> IntArray:
    """The id of each token in contexts: `vocabulary.size` for unknown tokens."""
    words = words_of(path)
    if END not in words:
        raise _invalid(path, None, f"{END} is missing, so no sentence can end")
    unknown = [token for token in vocabulary.tokens if token not in words and token != UNKNOWN]
    if len(unknown) > (len(vocabulary.tokens) // 2 if UNKNOWN in words else 0):
        lacking = listed([*map(repr, unknown)], 5)
        raise ModelError(f"{path}: does not fit the recogniser, because it lacks the tokens {lacking}")
    unknown_tokens = {UNKNOWN, *unknown}
    return np.array([0, *(vocabulary.size if t in unknown_tokens else n for n, t in enumerate(vocabulary.tokens, 1)),
                     vocabulary.end])  # fmt: skip


def _lines(path: Path) -> _Lines:
    """The non-empty lines of a file, with their numbers."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line := line.strip():
                    yield number, line
    except FileNotFoundError:
        raise ModelError(f"{path}: no such language model; check the path") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not an ARPA file, because it is not text in UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from None


def _invalid(path: Path, number: int | None, problem: str) -> ModelError:
    where = "" if number is None else f"line {number}: "
    return ModelError(f"{path}: {where}{problem}; write or fetch the file again")
