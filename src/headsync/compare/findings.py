"""What results say: which differences are more than chance, and how heads share the work.

Shapes: H heads, L output steps, T encoder frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headsync.audio import FloatArray
from headsync.measure.errors import ErrorCounts


class Difference(NamedTuple):
    """How much lower the error rate of the first of two systems is, and where the true value lies (95 %)."""

    points: float
    low: float
    high: float

    @property
    def is_more_than_chance(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_difference(
    one: Sequence[ErrorCounts], other: Sequence[ErrorCounts], resamples: int = 2000, seed: int = 1
) -> Difference:
    """A paired bootstrap: both systems are judged on the same drawn utterances, so what is hard for both cancels."""
    assert len(one) == len(other), "paired systems heard the same utterances"
    errors = np.array([[a.errors, b.errors] for a, b in zip(one, other, strict=True)])
    words = np.array([a.words for a in one])
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(words), size=(resamples, len(words)))
    gaps = errors[:, 1] - errors[:, 0]
    said = np.maximum(words[draws].sum(1), 1)
    low, high = np.quantile(gaps[draws].sum(1) / said, [0.025, 0.975])
    return Difference(float(gaps.sum() / max(words.sum(), 1)), float(low), float(high))


class Sharing(NamedTuple):
    """How the heads of a layer share the work."""

    mass_H: tuple[float, ...]  # what each head carries of all attention
    spread: float  # 1: all heads carry the same; 1 / H: one of them carries everything
    overlap: float  # mean over pairs of heads: 1 if both look at the same frames, 0 if at none in common


def sharing(weights_HLT: FloatArray) -> Sharing:
    """Of one utterance. Overlap is the sum over frames of the smaller of two weights, each head's summing to 1."""
    heads = len(weights_HLT)
    mass_H = weights_HLT.sum((1, 2)) / max(float(weights_HLT.sum()), 1e-12)
    entropy = -float(sum(m * np.log(m) for m in mass_H if m > 0))
    total_HL = weights_HLT.sum(-1, keepdims=True)
    shape_HLT = weights_HLT / np.maximum(total_HL, 1e-12)
    looks_HL = total_HL[..., 0] > 1e-3  # a head that looks nowhere overlaps with none
    pairs = [
        np.minimum(shape_HLT[a], shape_HLT[b]).sum(-1)[looks_HL[a] & looks_HL[b]]
        for a in range(heads)
        for b in range(a)
    ]
    together = np.concatenate(pairs) if pairs else np.zeros(0)
    return Sharing(
        tuple(mass_H.tolist()), float(np.exp(entropy)) / heads, float(together.mean()) if len(together) else 0.0
    )
