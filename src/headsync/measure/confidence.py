"""Confidence: how often is a word right that the model is so sure of?

A model tells for every word how sure it was. Whether that is a probability is seen by counting (`reliability`), and
made so by two numbers on development speech (`fit`): log odds are multiplied and shifted, which changes no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MOST_SURE = 1.0 - 1e-6  # beyond this the logarithm of the odds says nothing more


EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)  # most words are sure, so bins are narrow there


class Judged(NamedTuple):
    """A word of a transcript: how sure the model was of it, and whether it is right."""

    confidence: float
    right: bool


class Bin(NamedTuple):
    """Words of about the same confidence."""

    low: float
    high: float
    words: int
    confidence: float  # their mean
    right: float  # the share of them that is right


class Calibration(NamedTuple):
    """What turns the log odds of a model into those of being right."""

    scale: float
    offset: float


def calibrated(confidence: float, scale: float, offset: float) -> float:
    """The probability of being right of a word that the model is so sure of."""
    return float(_sigmoid(scale * _log_odds(np.array(confidence)) + offset))


def fit(words: Sequence[Judged]) -> Calibration:
    """The two numbers under which the words are most probable, by Newton's method.

    Fewer than one word of each sort would leave them without bounds, so that half a word of each is added (Platt).
    """
    x = _log_odds(np.array([word.confidence for word in words]))
    right = np.array([word.right for word in words], dtype=bool)
    sure, unsure = (right.sum() + 1.0) / (right.sum() + 2.0), 1.0 / ((~right).sum() + 2.0)
    target = np.where(right, sure, unsure)
    inputs = np.stack([x, np.ones_like(x)], 1)
    weights = np.array([1.0, 0.0])
    for _ in range(50):
        p = _sigmoid(inputs @ weights)
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, inputs.T @ (target - p))
        weights = weights + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
    return Calibration(float(weights[0]), float(weights[1]))


def reliability(words: Sequence[Judged], edges: Sequence[float] = EDGES) -> list[Bin]:
    """Words sorted by confidence: in each bin the two last columns should agree."""
    confidence = np.array([word.confidence for word in words])
    right = np.array([word.right for word in words], dtype=float)
    place = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, len(edges) - 2)
    bins = []
    for n, (low, high) in enumerate(pairwise(edges)):
        inside = place == n
        if inside.any():
            means = float(confidence[inside].mean()), float(right[inside].mean())
            bins.append(Bin(low, high, int(inside.sum()), *means))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """How far confidence and truth are apart, on average over words."""
    total = sum(each.words for each in bins)
    return sum(each.words * abs(each.confidence - each.right) for each in bins) / total if total else 0.0


def _log_odds(p: Numbers) -> Numbers:
    p = np.clip(p, 1.0 - MOST_SURE, MOST_SURE)
    return np.asarray(np.log(p) - np.log1p(-p))


def _sigmoid(x: Numbers) -> Numbers:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))
