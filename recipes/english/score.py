"""Word error rate after Whisper's English normaliser (`pip install whisper-normalizer`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import jiwer
from speech import RUNS

EXTRA = RUNS / "venv/site"
INSTALL = f"pip install --target {EXTRA} --no-deps whisper-normalizer more-itertools regex"


@cache
def _normaliser() -> Any:
    if EXTRA.is_dir():
        sys.path.append(os.fspath(EXTRA))
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise SystemExit(f"{error}; remedy: {INSTALL}") from error
    return EnglishTextNormalizer()


@cache
def normalised(text: str) -> str:
    return str(_normaliser()(text))


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
