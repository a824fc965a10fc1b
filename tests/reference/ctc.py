"""CTC, literally: every path of labels and blanks, written out. Classes count from 0, which is blank."""

from __future__ import annotations

import itertools

import numpy as np

from reference import Array


def read(path: tuple[int, ...]) -> tuple[int, ...]:
    """What a path says: repeated labels are one, blanks none."""
    return tuple(label for label, _ in itertools.groupby(path) if label)


def probability_of_whole(tokens: tuple[int, ...], log_p: Array) -> float:
    """That the speech is these tokens and nothing more."""
    return sum(np.exp(score) for path, score in _paths(log_p) if read(path) == tokens)


def probability_of_prefix(tokens: tuple[int, ...], log_p: Array) -> float:
    """That the speech begins with these tokens."""
    return sum(np.exp(score) for path, score in _paths(log_p) if read(path)[: len(tokens)] == tokens)


def _paths(log_p: Array) -> list[tuple[tuple[int, ...], float]]:
    frames, classes = log_p.shape
    paths = itertools.product(range(classes), repeat=frames)
    return [(path, sum(log_p[t, label] for t, label in enumerate(path))) for path in paths]
