"""Statistics of results: significance of differences, and how heads share attention.

Shapes: H heads, L output steps, T encoder frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headsync.evaluation.error_rate import ErrorCounts
from headsync.frontend.audio import FloatArray


class Difference(NamedTuple):
    """The difference of two error rates (positive: the first is lower) with its 95 % interval."""

    points: float
    low: float
    high: float

    @property
    def is_more_than_chance(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_difference(
    one: Sequence[ErrorCounts], other: Sequence[ErrorCounts], resamples: int = 2000, seed: int = 1
) -> Difference:
    """Paired bootstrap over utterances."""
    assert len(one) == len(other), "paired systems have the same utterances"
    errors = np.array([[a.errors, b.errors] for a, b in zip(one, other, strict=True)])
    words = np.array([a.words for a in one])
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(words), size=(resamples, len(words)))
    gaps = errors[:, 1] - errors[:, 0]
    said = np.maximum(words[draws].sum(1), 1)
    low, high = np.quantile(gaps[draws].sum(1) / said, [0.025, 0.975])
    return Difference(float(gaps.sum() / max(words.sum(), 1)), float(low), float(high))


class HeadUsage(NamedTuple):
    """How the heads of a layer share attention."""

    mass_H: tuple[float, ...]  # share of the attention of each head
    spread: float  # 1: equal shares; 1 / H: one head has all of it
    overlap: float  # mean over pairs of heads: 1 for the same frames, 0 for no frame in common


def head_usage(weights_HLT: FloatArray) -> HeadUsage:
    """The usage in one utterance; overlap is the sum over frames of the smaller of two normalised weights."""
    heads = len(weights_HLT)
    mass_H = weights_HLT.sum((1, 2)) / max(float(weights_HLT.sum()), 1e-12)
    entropy = -float(sum(m * np.log(m) for m in mass_H if m > 0))
    total_HL = weights_HLT.sum(-1, keepdims=True)
    shape_HLT = weights_HLT / np.maximum(total_HL, 1e-12)
    looks_HL = total_HL[..., 0] > 1e-3  # a head without attention overlaps with none
    pairs = [
        np.minimum(shape_HLT[a], shape_HLT[b]).sum(-1)[looks_HL[a] & looks_HL[b]]
        for a in range(heads)
        for b in range(a)
    ]
    together = np.concatenate(pairs) if pairs else np.zeros(0)
    return HeadUsage(
        tuple(mass_H.tolist()), float(np.exp(entropy)) / heads, float(together.mean()) if len(together) else 0.0
    )
