"""Continuous integrate-and-fire, literally: an accumulator that fires, frame after frame."""

from __future__ import annotations

from reference import Array, one_based


def fire(alpha: Array) -> list[dict[int, float]]:
    """The weights of each token by frame j = 1 .. T; a frame may fire several times if its alpha is more than 1."""
    T = len(alpha)
    alpha = one_based(alpha)
    tokens: list[dict[int, float]] = []
    now: dict[int, float] = {}
    accumulated = 0.0
    for j in range(1, T + 1):
        rest = float(alpha[j])
        while accumulated + rest >= 1:
            used = 1 - accumulated  # completes the token
            tokens.append(now | {j: used})
            now, accumulated, rest = {}, 0.0, rest - used
        now[j] = rest
        accumulated += rest
    if accumulated >= 0.5:  # the residue of the end
        tokens.append(now)
    return tokens
