"""Word and character error rates.

A reference may be empty (noise, silence, speech outside the vocabulary); every word recognised there is an insertion.
Spaces are not counted as characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jiwer
import numpy as np

from headsync.evaluation.formatting import Additive, equal_words

Unit = Literal["words", "characters"]


@dataclass(frozen=True)
class ErrorCounts(Additive):
    """Edits between reference and hypothesis, and the number of reference words or characters; they add up."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    words: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Errors per reference word; None without reference words."""
        return self.errors / self.words if self.words else None


class Interval(NamedTuple):
    low: float
    high: float


def count_errors(reference: str, hypothesis: str, unit: Unit = "words") -> ErrorCounts:
    """Count the edits of a minimum edit distance alignment, by words or characters."""
    if unit == "characters":
        reference, hypothesis = (" ".join("".join(text.split())) for text in (reference, hypothesis))
    if not reference.strip():  # some versions of jiwer refuse it
        return ErrorCounts(insertions=len(hypothesis.split()))
    aligned = jiwer.process_words(reference, hypothesis)
    words = aligned.hits + aligned.substitutions + aligned.deletions
    return ErrorCounts(aligned.substitutions, aligned.deletions, aligned.insertions, words)


def right_words(reference: str, hypothesis: str) -> list[bool]:
    """For each word of the hypothesis, whether it is aligned to an equal word of the reference."""
    words = hypothesis.split()
    right = {n for _, n in equal_words(reference.split(), words)}
    return [n in right for n in range(len(words))]


def bootstrap_interval(
    counts: Sequence[ErrorCounts], *, confidence: float = 0.95, resamples: int = 1000, seed: int = 1
) -> Interval | None:
    """The interval of the error rate by bootstrap over units; None without reference words.

    A unit is an utterance, or a speaker for a bootstrap clustered by speaker: errors within a unit are correlated.
    """
    errors = np.array([count.errors for count in counts], dtype=np.int64)
    words = np.array([count.words for count in counts], dtype=np.int64)
    if not words.sum():
        return None
    rng = np.random.default_rng(seed)
    draws = (rng.integers(len(counts), size=len(counts)) for _ in range(resamples))
    sums = [(errors[draw].sum(), words[draw].sum()) for draw in draws]
    # A draw of empty references only has no rate.
    rates = [wrong / said for wrong, said in sums if said]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(rates, [tail, 1.0 - tail])
    return Interval(float(low), float(high))


def invented_per_minute(counts: ErrorCounts, audio_seconds: float) -> float:
    """Inserted words per minute of audio: the error measure for recordings without reference words."""
    return counts.insertions * 60.0 / audio_seconds if audio_seconds else 0.0
