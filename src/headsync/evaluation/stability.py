"""Stability: how much of the displayed text is erased; docs/reference/measures.md has the definitions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from headsync.decoding.phrase_text import common_prefix
from headsync.evaluation.formatting import Additive
from headsync.evaluation.latency import TimedEvents


@dataclass(frozen=True)
class Stability(Additive):
    """Counts of words; they add up over recordings."""

    final: int = 0  # words of the transcript
    erased: int = 0  # words that an update removed or changed, counted at every update
    displayed: int = 0  # different words displayed at a position of an utterance
    unstable: int = 0  # displayed words that the transcript does not have at that position

    @property
    def normalised_erasure(self) -> float | None:
        return self.erased / self.final if self.final else None

    @property
    def unstable_share(self) -> float | None:
        return self.unstable / self.displayed if self.displayed else None


def measure_stability(stream: TimedEvents) -> Stability:
    """The counts of one recording; the last text of an utterance is its transcript."""
    total = Stability()
    for texts in stream.utterances():
        words = [tuple(word.text for word in text.words) for text, _ in texts]
        erased = sum(len(before) - len(common_prefix([before, after])) for before, after in pairwise(words))
        displayed = {(position, word) for shown in words for position, word in enumerate(shown)}
        stable = set(enumerate(words[-1]))
        total += Stability(len(words[-1]), erased, len(displayed), len(displayed - stable))
    return total
