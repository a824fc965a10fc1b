"""Hard monotonic attention, MoChA, MMA-MoChA and MTA, literally; one head unless said otherwise.

Indices count from 1: i = 1 .. L output steps, j = 1 .. T frames. `limit` holds for each step the last frame it may look
at. Boundaries of a stream are frames, None where no frame fires.
"""

from __future__ import annotations

import math

import numpy as np

from reference import Array, one_based


def expected_boundaries(p: Array, limit: list[int]) -> Array:
    """alpha_{i,j}, by the definition: from each boundary k of the step before, on to j without stopping, and stop."""
    L, T = p.shape
    p = one_based(p, 2)
    alpha = np.zeros((L + 1, T + 1))
    alpha[0, 1] = 1.0
    for i in range(1, L + 1):
        for j in range(1, min(limit[i - 1], T) + 1):
            for k in range(1, j + 1):
                passed = 1.0
                for l in range(k, j):  # noqa: E741
                    passed *= 1 - p[i, l]
                alpha[i, j] += alpha[i - 1, k] * passed * p[i, j]
    return alpha[1:, 1:]


def expected_chunks(alpha: Array, u: Array, w: int) -> Array:
    """beta_{i,j}: of every boundary k the softmax over the w frames that end there."""
    L, T = alpha.shape
    alpha, u = one_based(alpha, 2), one_based(u, 2)
    beta = np.zeros((L + 1, T + 1))
    for i in range(1, L + 1):
        for k in range(1, T + 1):
            for j, share in chunk(u[i], k, w).items():
                beta[i, j] += alpha[i, k] * share
    return beta[1:, 1:]


def chunk(u_i: Array, k: int, w: int) -> dict[int, float]:
    """The softmax over the w frames that end at frame k, by frame."""
    inside = range(max(1, k - w + 1), k + 1)
    largest = max(u_i[j] for j in inside)
    total = sum(math.exp(u_i[j] - largest) for j in inside)
    return {j: math.exp(u_i[j] - largest) / total for j in inside}


def boundaries(p: Array, limit: list[int]) -> list[int | None]:
    """Of a stream: from the boundary before on, the first frame with p >= 1/2; after a step without, there is none."""
    L, T = p.shape
    p = one_based(p, 2)
    found: list[int | None] = []
    start: int | None = 1
    for i in range(1, L + 1):
        if start is not None:
            scanned = range(start, min(limit[i - 1], T) + 1)
            start = next((j for j in scanned if p[i, j] >= 0.5), None)
        found.append(start)
    return found


def synchronised_boundaries(p: Array, limit: list[int], eps: int) -> list[list[int | None]]:
    """For the M heads of a layer, p (M, L, T): a head that has not fired eps frames after the first is forced to."""
    M, L, T = p.shape
    p = one_based(p, 3)
    start: dict[int, int | None] = dict.fromkeys(range(1, M + 1), 1)
    found = []
    for i in range(1, L + 1):
        last = min(limit[i - 1], T)
        alive = [m for m, j in start.items() if j is not None]
        for m in alive:
            start[m] = next((j for j in range(start[m] or 1, last + 1) if p[m, i, j] >= 0.5), None)
        fired = [j for m in alive if (j := start[m]) is not None]
        for m in alive if fired else []:
            latest = min(fired) + eps
            if latest <= last:
                start[m] = min(start[m] or latest, latest)
        found.append([start[m] for m in range(1, M + 1)])
    return found


def truncated(p: Array, limit: list[int]) -> Array:
    """MTA: p_{i,j} times the probability of not having stopped before."""
    L, T = p.shape
    p = one_based(p, 2)
    w = np.zeros((L + 1, T + 1))
    for i in range(1, L + 1):
        for j in range(1, min(limit[i - 1], T) + 1):
            w[i, j] = p[i, j] * math.prod(1 - p[i, k] for k in range(1, j))
    return w[1:, 1:]


def truncated_stream(p: Array, limit: list[int]) -> tuple[Array, list[int]]:
    """The same weights, cut after the first frame with p > 1/2 from the end of the step before on; and these ends."""
    L, T = p.shape
    w, p = one_based(truncated(p, limit), 2), one_based(p, 2)
    start, ends = 1, []
    for i in range(1, L + 1):
        last = min(limit[i - 1], T)
        fired = [j for j in range(start, last + 1) if p[i, j] > 0.5]
        end = fired[0] if fired else last
        w[i, end + 1 :] = 0.0
        ends.append(end)
        start = end if fired else last + 1
    return w[1:, 1:], ends
