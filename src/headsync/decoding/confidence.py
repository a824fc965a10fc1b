"""Confidence: the probability that a word is correct.

The score of a word is between 0 and 1, but need not be a probability. `reliability` compares it with the share of
correct words. `fit` calibrates it on development data: it scales and shifts the log odds, which preserves their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MOST_SURE = 1.0 - 1e-6  # limit of the log odds

EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)  # narrow where most words are


class ScoredWord(NamedTuple):
    confidence: float
    right: bool


class Bin(NamedTuple):
    """Words of about the same confidence."""

    low: float
    high: float
    words: int
    confidence: float  # their mean
    right: float  # the share of correct words


def calibrated(confidence: float, scale: float, offset: float) -> float:
    return float(_sigmoid(scale * _log_odds(np.array(confidence)) + offset))


def fit(words: Sequence[ScoredWord]) -> tuple[float, float]:
    """Scale and offset of highest likelihood, by Newton's method; with Platt's targets, so that they are finite."""
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
    return float(weights[0]), float(weights[1])


def reliability(words: Sequence[ScoredWord], edges: Sequence[float] = EDGES) -> list[Bin]:
    """Words in bins of confidence; if calibrated, mean confidence and share of correct words agree."""
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
    """Expected calibration error: mean distance of confidence and share of correct words."""
    total = sum(each.words for each in bins)
    return sum(each.words * abs(each.confidence - each.right) for each in bins) / total if total else 0.0


def _log_odds(p: Numbers) -> Numbers:
    p = np.clip(p, 1.0 - MOST_SURE, MOST_SURE)
    return np.asarray(np.log(p) - np.log1p(-p))


def _sigmoid(x: Numbers) -> Numbers:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))
