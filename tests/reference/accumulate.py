"""ACS, DACS (section 3), HS-DACS (section 4) and Algorithm 1, literally.

Where the paper leaves something open, these loops take the same reading as the package: the look-ahead is counted from
t_{i-1} (Algorithm 1, not eq. 6 and 9), a layer's heads share one accumulator (eq. 8), and t_i never falls.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from reference import Array, one_based


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def energy(q_i: Array, k_j: Array) -> float:
    """Eq. (4)."""
    d_k = len(q_i)
    return sum(float(a) * float(b) for a, b in zip(q_i, k_j, strict=True)) / math.sqrt(d_k)


class Halted(NamedTuple):
    """One output step of one layer; by head h, counted from 1."""

    p: dict[tuple[int, int], float]  # p^h_{i,j} by (h, j), as far as it was computed
    N: dict[int, int]  # N_i by h
    c: dict[int, Array]  # c_i by h, eq. (7)


def dacs(q: Array, k: Array, v: Array, limit: int, threshold: float = 1.0, bias: float = 0.0) -> Halted:
    """Eq. (4) to (7): every head halts separately. q (H, d), k and v (H, T, d); `limit` is t_{i-1} + M."""
    H, T, _ = k.shape
    q, k, v = one_based(q), one_based(k, 2), one_based(v, 2)
    p, N, c = {}, {}, {}
    for h in range(1, H + 1):
        total = 0.0
        N[h] = min(limit, T)
        for j in range(1, min(limit, T) + 1):
            p[h, j] = sigmoid(energy(q[h], k[h, j]) + bias)  # eq. (5)
            total += p[h, j]
            if total > threshold:  # eq. (6)
                N[h] = j
                break
        c[h] = sum((p[h, j] * v[h, j] for j in range(1, N[h] + 1)), np.zeros(v.shape[2]))  # eq. (7)
    return Halted(p, N, c)


def hs_dacs(q: Array, k: Array, v: Array, limit: int, threshold: float = 1.0, bias: float = 0.0) -> Halted:
    """Eq. (8) and (9): the heads of a layer add into one sum and halt together, at H times `threshold`."""
    H, T, _ = k.shape
    q, k, v = one_based(q), one_based(k, 2), one_based(v, 2)
    p = {}
    total, N_l = 0.0, min(limit, T)
    for j in range(1, min(limit, T) + 1):
        p_l = 0.0
        for h in range(1, H + 1):
            p[h, j] = sigmoid(energy(q[h], k[h, j]) + bias)
            p_l += p[h, j]  # eq. (8)
        total += p_l
        if total > H * threshold:  # eq. (9)
            N_l = j
            break
    c = {h: sum((p[h, j] * v[h, j] for j in range(1, N_l + 1)), np.zeros(v.shape[2])) for h in range(1, H + 1)}
    return Halted(p, dict.fromkeys(range(1, H + 1), N_l), c)


def acs(q: Array, k: Array, v: Array, limit: int, threshold: float = 1.0, bias: float = 0.0) -> Halted:
    """One halting probability of the whole layer for each frame, from all heads' queries and keys side by side."""
    H, T, _ = k.shape
    q, k, v = one_based(q), one_based(k, 2), one_based(v, 2)
    p, total, N = {}, 0.0, min(limit, T)
    for j in range(1, min(limit, T) + 1):
        whole_q = np.concatenate([q[h] for h in range(1, H + 1)])
        whole_k = np.concatenate([k[h, j] for h in range(1, H + 1)])
        p_j = sigmoid(energy(whole_q, whole_k) + bias)
        total += p_j
        p |= {(h, j): p_j for h in range(1, H + 1)}
        if total > threshold:
            N = j
            break
    c = {h: sum((p[h, j] * v[h, j] for j in range(1, N + 1)), np.zeros(v.shape[2])) for h in range(1, H + 1)}
    return Halted(p, dict.fromkeys(range(1, H + 1), N), c)


class Decoded(NamedTuple):
    """What Algorithm 1 computes for L output steps; keys count from 1, t_0 included."""

    c: dict[tuple[int, int], Array]  # c^l_i by (i, l): the heads' contexts, concatenated
    N: dict[tuple[int, int], int]  # j at which layer l left its loop at step i
    t: dict[int, int]


def algorithm_1(q: Array, k: Array, v: Array, M: int, threshold: float = 1.0, bias: tuple[float, ...] = ()) -> Decoded:
    """Algorithm 1 for given decoder states q (L, N_d, H, d) and encoder states k, v (N_d, H, T, d).

    The loop over output steps ends with the given states instead of <eos>. `bias`: of the energies, one per layer.
    """
    L, N_d, H, d = q.shape
    T = k.shape[2]
    q, k, v, b = one_based(q, 3), one_based(k, 3), one_based(v, 3), one_based(bias or np.zeros(N_d))
    c, N = {}, {}
    t = {0: 0}
    for i in range(1, L + 1):
        t[i] = t[i - 1]  # the furthest frame reached so far
        for l in range(1, N_d + 1):  # noqa: E741
            acc = 0.0
            p = {}
            for j in range(1, min(t[i - 1] + M, T) + 1):
                for h in range(1, H + 1):
                    p[h, j] = sigmoid(energy(q[i, l, h], k[l, h, j]) + b[l])
                    acc += p[h, j]
                if acc > H * threshold:
                    break
            context = []
            for h in range(1, H + 1):
                context.append(sum((p[h, m] * v[l, h, m] for m in range(1, j + 1)), np.zeros(d)))
            c[i, l] = np.concatenate(context)
            N[i, l] = j
            t[i] = max(t[i], j)
    return Decoded(c, N, t)
