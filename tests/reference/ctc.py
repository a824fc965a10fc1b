"""CTC, literally: every path of labels and blanks, written out. Classes count from 0, which is blank."""

from __future__ import annotations

import itertools

import numpy as np

from reference import Array


def read(path: tuple[int, ...]) -> tuple[int, ...]:
    """The text of a path: repeated labels are merged, blanks removed."""
    return tuple(label for label, _ in itertools.groupby(path) if label)


def probability_of_whole(tokens: tuple[int, ...], log_p: Array) -> float:
    """That the speech is these tokens and nothing more."""
    return sum(np.exp(score) for path, score in _paths(log_p) if read(path) == tokens)


def probability_of_prefix(tokens: tuple[int, ...], log_p: Array) -> float:
    """That the speech begins with these tokens."""
    return sum(np.exp(score) for path, score in _paths(log_p) if read(path)[: len(tokens)] == tokens)


def prefix_scores(tokens: tuple[int, ...], log_p: Array) -> tuple[float, float]:
    """log psi and log r_T by their recursions, from the first frame to the last; `np.logaddexp` of two numbers only."""
    label, blank = blanks_follow((-np.inf,), (0.0,), log_p)  # of the empty prefix, from before the first frame on
    psi = 0.0
    for place, c in enumerate(tokens):
        psi, label, blank = extended(label, blank, place > 0 and tokens[place - 1] == c, c, log_p)
    return psi, np.logaddexp(label[-1], blank[-1])


Path = tuple[float, ...]  # r^n or r^b of a prefix, from before the first frame on


def extended(label: Path, blank: Path, repeats: bool, c: int, log_p: Array) -> tuple[float, Path, Path]:
    """psi, r^n and r^b of a prefix with the token c after it, on the frames of the prefix."""
    frames = len(label) - 1
    phi = [blank[t] if repeats else np.logaddexp(label[t], blank[t]) for t in range(frames + 1)]
    psi, label_c, blank_c = -np.inf, [-np.inf], [-np.inf]
    for t in range(frames):
        psi = np.logaddexp(psi, phi[t] + log_p[t][c])
        blank_c.append(np.logaddexp(label_c[t], blank_c[t]) + log_p[t][0])
        label_c.append(np.logaddexp(label_c[t], phi[t]) + log_p[t][c])
    return psi, tuple(label_c), tuple(blank_c)


def blanks_follow(label: Path, blank: Path, log_p: Array) -> tuple[Path, Path]:
    """r^n and r^b of a prefix after more frames, if nothing but blanks follows: exact for the empty prefix alone."""
    longer = list(blank)
    for p in log_p:
        longer.append(longer[-1] + p[0])
    return (*label, *[-np.inf] * len(log_p)), tuple(longer)


def _paths(log_p: Array) -> list[tuple[tuple[int, ...], float]]:
    frames, classes = log_p.shape
    paths = itertools.product(range(classes), repeat=frames)
    return [(path, sum(log_p[t, label] for t, label in enumerate(path))) for path in paths]


def best_alignment(tokens: tuple[int, ...], log_p: Array) -> tuple[int, ...] | None:
    """The first frame of each token on the most probable path of the tokens; None if there is no such path."""
    saying = [(score, path) for path, score in _paths(log_p) if read(path) == tokens]
    if not saying:
        return None
    _, path = max(saying)
    return tuple(t for t, label in enumerate(path) if label and (t == 0 or path[t - 1] != label))
