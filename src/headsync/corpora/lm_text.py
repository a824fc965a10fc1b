"""Text for language models: sentences from a file, and the same sentences as token ids.

A file has one sentence per line, in UTF-8; a file whose name ends in .gz is decompressed.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headsync.errors import DataError
from headsync.text.vocabulary import UNKNOWN, Vocabulary

MOST_WORDS = 65_000  # of a vocabulary of words: paper
HELD_OUT = 0.02  # share at the end of a text to evaluate on, if there is no other text
_CASES: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "upper": str.upper}


@dataclass(frozen=True)
class Corpus:
    """Sentences as token ids: sentence n is `ids[starts[n] : starts[n + 1]]`, without the end token."""

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    words: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> npt.NDArray[np.int32]:
        return self.ids[self.starts[number] : self.starts[number + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)


def read_sentences(path: Path, case: str = "keep") -> list[str]:
    """The non-empty lines of a file, in the given case."""
    change = _CASES[case]
    try:
        sentences = [change(line) for text in _lines(path) if (line := " ".join(text.split()))]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; pass a text with one sentence per line") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not in UTF-8; convert it") from None
    if not sentences:
        raise DataError(f"{path}: contains no sentence")
    return sentences


def split_off(sentences: Sequence[str], share: float) -> tuple[Sequence[str], Sequence[str]]:
    """The sentences to train on, and the last ones (at least one) to hold out."""
    last = max(1, round(share * len(sentences)))
    if last >= len(sentences):
        raise DataError(f"{len(sentences)} sentences are too few to hold some out; set data.dev to other sentences")
    return sentences[:-last], sentences[-last:]


def word_vocabulary(sentences: Iterable[str], most: int = MOST_WORDS) -> Vocabulary:
    """The most frequent words, and <unk> for all others."""
    counts = Counter(word for sentence in sentences for word in sentence.split())
    counts.pop(UNKNOWN, None)
    frequent = sorted((-count, word) for word, count in counts.items())
    return Vocabulary("words", tuple(sorted({UNKNOWN, *(word for _, word in frequent[:most])})))


def encode(sentences: Iterable[str], vocabulary: Vocabulary) -> tuple[Corpus, list[str]]:
    """The sentences as token ids, and the sentences outside the vocabulary, which are omitted."""
    parts: list[npt.NDArray[np.int32]] = []
    omitted: list[str] = []
    words = 0
    for sentence in sentences:
        try:
            parts.append(np.array(vocabulary.encode(sentence), np.int32))
            words += len(sentence.split())
        except DataError:
            omitted.append(sentence)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    return Corpus(np.concatenate([np.zeros(0, np.int32), *parts]), starts, words), omitted


def _lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        yield from file
