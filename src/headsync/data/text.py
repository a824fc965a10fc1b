"""Text for language models: sentences from a file, and the same as ids in one long array.

A file holds one sentence a line, in UTF-8; where its name ends in .gz it is unpacked while it is read.
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

from headsync.config import LanguageConfig
from headsync.errors import DataError
from headsync.tokens import UNKNOWN, Vocabulary

CASES: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "upper": str.upper}


@dataclass(frozen=True)
class Corpus:
    """Sentences as ids: sentence n is `ids[starts[n] : starts[n + 1]]`, without its end."""

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
    """The lines of a file that are not empty, in the asked-for case."""
    change = CASES[case]
    try:
        sentences = [change(line) for text in _lines(path) if (line := " ".join(text.split()))]
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such text; name a file with one sentence a line") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text in UTF-8; convert it before") from None
    if not sentences:
        raise DataError(f"{path}: there is no sentence in it")
    return sentences


def split_off(sentences: Sequence[str], share: float) -> tuple[Sequence[str], Sequence[str]]:
    """Sentences to learn from, and the last ones, at least one, to measure with."""
    last = max(1, round(share * len(sentences)))
    if last >= len(sentences):
        raise DataError(f"{len(sentences)} sentences are too few to hold some out; name others in data.dev")
    return sentences[:-last], sentences[-last:]


def word_vocabulary(sentences: Iterable[str], config: LanguageConfig) -> Vocabulary:
    """The most frequent words, and <unk> for all others."""
    counts = Counter(word for sentence in sentences for word in sentence.split())
    counts.pop(UNKNOWN, None)
    frequent = sorted((-count, word) for word, count in counts.items() if count >= config.least_count)
    return Vocabulary("words", tuple(sorted({UNKNOWN, *(word for _, word in frequent[: config.most_words])})))


def encode(sentences: Iterable[str], vocabulary: Vocabulary) -> tuple[Corpus, list[str]]:
    """The sentences as ids, and those that cannot be spelled with this vocabulary, which are left out."""
    parts: list[npt.NDArray[np.int32]] = []
    strange: list[str] = []
    words = 0
    for sentence in sentences:
        try:
            parts.append(np.array(vocabulary.encode(sentence), np.int32))
            words += len(sentence.split())
        except DataError:
            strange.append(sentence)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    return Corpus(np.concatenate([np.zeros(0, np.int32), *parts]), starts, words), strange


def _lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        yield from file
