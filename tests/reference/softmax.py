"""Scaled dot-product attention and its heads (section 2), literally."""

from __future__ import annotations

import math

import numpy as np

from reference import Array, one_based
from reference.accumulate import energy


def weights(q_i: Array, K: Array) -> list[float]:
    """softmax(q_i K^T / sqrt(d_k)), the weights of eq. (1); the list begins with frame 1."""
    T = len(K)
    K = one_based(K)
    e = [energy(q_i, K[j]) for j in range(1, T + 1)]
    total = sum(math.exp(x) for x in e)
    return [math.exp(x) / total for x in e]


def attention(Q: Array, K: Array, V: Array) -> Array:
    """Eq. (1): Q (L, d_k), K and V (T, d_k)."""
    L, T = len(Q), len(K)
    Q, V = one_based(Q), one_based(V)
    rows = []
    for i in range(1, L + 1):
        alpha = one_based(weights(Q[i], K))
        rows.append(sum((alpha[j] * V[j] for j in range(1, T + 1)), np.zeros(V.shape[1])))
    return np.array(rows)


def multi_head(Q: Array, K: Array, V: Array, W_Q: list[Array], W_K: list[Array], W_V: list[Array], W_O: Array) -> Array:
    """Eq. (2) and (3): one projection of each kind per head."""
    heads = [attention(Q @ w_q, K @ w_k, V @ w_v) for w_q, w_k, w_v in zip(W_Q, W_K, W_V, strict=True)]
    return np.concatenate(heads, axis=1) @ W_O
