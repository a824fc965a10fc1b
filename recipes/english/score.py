"""Word error rate after Whisper's English normaliser."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jiwer

from headsync.evaluation.normalise import normaliser


@cache
def normalised(text: str) -> str:
    return normaliser("english")(text)


def word_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """Errors and reference words of a pair."""
    wanted, found = normalised(reference), normalised(hypothesis)
    if not wanted:
        return len(found.split()), 0
    result = jiwer.process_words(wanted, found)
    return result.substitutions + result.deletions + result.insertions, len(wanted.split())


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Word error rate over all pairs, in per cent."""
    pairs = [word_errors(r, h) for r, h in zip(references, hypotheses, strict=True)]
    return 100 * sum(e for e, _ in pairs) / max(1, sum(n for _, n in pairs))
