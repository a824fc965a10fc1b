"""The moonshine family's front end and encoder as literal loops, in numpy: one block at a time, one state at a time.

Positions count from the first key of a window, and the pairs that are rotated are named one by one.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def norm(x: Array, weight: Array) -> Array:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * weight


def front(samples: Array, w: Weights) -> list[Array]:
    """States of 24 ms of a recording."""
    first, sums = [], [0.0, 0.0]
    for begin in range(0, len(samples) - 126, 64):
        x = w["front.first.weight"][:, 0] @ samples[begin : begin + 127]
        power = np.mean(x**2)
        sums = [s * math.exp(-64 / 16_000 / 4) + new for s, new in zip(sums, (power**1.5, power**0.5), strict=True)]
        prior = 25 * math.sqrt(3e-7)
        level = (sums[0] + prior * 3e-7) / (sums[1] + prior)
        y = np.tanh(x * 0.085 / math.sqrt(0.22 * level)) / 0.085
        first.append(y * w["front.weight"] + w["front.bias"])
    return convolved(convolved(first, w, "second", 7, 3), w, "third", 3, 2)


def convolved(x: list[Array], w: Weights, name: str, size: int, stride: int) -> list[Array]:
    kernel, bias = w[f"front.{name}.weight"], w[f"front.{name}.bias"]
    places = range(0, len(x) - size + 1, stride)
    return [gelu(sum(kernel[:, :, i] @ x[place + i] for i in range(size)) + bias) for place in places]


def rotated(x: Array, position: int) -> Array:
    """A head's query or key at a position."""
    size = min(32, len(x))
    y = x.copy()
    for n in range(size // 2):
        angle = position * 10_000 ** (-2 * n / size)
        one, other = x[n], x[n + size // 2]
        y[n] = one * math.cos(angle) - other * math.sin(angle)
        y[n + size // 2] = other * math.cos(angle) + one * math.sin(angle)
    return y


def encode(samples: Array, w: Weights, heads: int, layers: int, size: tuple[int, int, int]) -> Array:
    """Encoder frames of a recording; sizes are left, centre, right frames of 48 ms."""
    states = front(samples, w)
    states = states[: len(states) // 2 * 2]
    left, centre, right = (2 * n for n in size)
    pasts: list[list[tuple[Array, Array]]] = [[] for _ in range(layers)]
    out: list[Array] = []
    for begin in range(0, len(states), centre):
        x = states[begin : begin + centre + right]
        for n in range(layers):
            x, own = layer(x, pasts[n], w, f"layers.{n}.", heads)
            pasts[n] = (pasts[n] + own[:centre])[-left:] if left else []
        out += [norm(y, w["norm.weight"]) for y in x[:centre]]
    return np.array([w["pair.weight"] @ np.concatenate(out[n : n + 2]) for n in range(0, len(out), 2)])


def layer(
    x: list[Array], past: list[tuple[Array, Array]], w: Weights, name: str, heads: int
) -> tuple[list[Array], list[tuple[Array, Array]]]:
    """One layer on a block; also its keys and values, unrotated."""
    projected = [np.split(w[f"{name}query_key_value.weight"] @ norm(y, w[f"{name}norm.weight"]), 3) for y in x]
    own = [(k, v) for _, k, v in projected]
    seen, out = past + own, []
    for place, (y, (q, _, _)) in enumerate(zip(x, projected, strict=True), len(past)):
        context = np.concatenate([attend(q, place, seen, head, heads) for head in range(heads)])
        z = y + w[f"{name}out.weight"] @ context
        h = w[f"{name}feedforward.first.weight"] @ norm(z, w[f"{name}feedforward.norm.weight"])
        h = gelu(h + w[f"{name}feedforward.first.bias"])
        out.append(z + w[f"{name}feedforward.second.weight"] @ h + w[f"{name}feedforward.second.bias"])
    return out, own


def attend(q: Array, place: int, seen: list[tuple[Array, Array]], head: int, heads: int) -> Array:
    width = len(q) // heads
    part = slice(head * width, (head + 1) * width)
    query = rotated(q[part], place)
    energies = np.array([query @ rotated(k[part], n) for n, (k, _) in enumerate(seen)]) / math.sqrt(width)
    weights = np.exp(energies - energies.max())
    return np.asarray(sum(p * v[part] for p, (_, v) in zip(weights / weights.sum(), seen, strict=True)))
