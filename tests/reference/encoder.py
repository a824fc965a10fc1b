"""The chunk encoder (section 5.1), literally: one window after the other, one frame after the other.

Frames count from 0 here, since the paper gives no equations for the encoder. `w` holds the weights by their names.
"""

from __future__ import annotations

import math

import numpy as np

from headsync.config import EncoderConfig
from reference import Array

Weights = dict[str, Array]


def linear(x: Array, w: Weights, name: str) -> Array:
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def norm(x: Array, w: Weights, name: str) -> Array:
    spread = math.sqrt(float(np.mean((x - x.mean()) ** 2)) + 1e-5)
    return (x - x.mean()) / spread * w[f"{name}.weight"] + w[f"{name}.bias"]


def front(features: Array, w: Weights) -> list[Array]:
    """Two 3x3 CNN layers of stride 2 without padding, each with a ReLU; a linear layer; the root of the width.

    Frame k sees feature frames 4k to 4k+6.
    """
    x = features[None]
    for name in ("front.first", "front.second"):
        kernels = w[f"{name}.weight"]
        times, bands = (x.shape[1] - 3) // 2 + 1, (x.shape[2] - 3) // 2 + 1
        y = np.zeros((len(kernels), max(0, times), bands))
        for o in range(len(kernels)):
            for t in range(times):
                for f in range(bands):
                    patch = x[:, 2 * t : 2 * t + 3, 2 * f : 2 * f + 3]
                    y[o, t, f] = max(0.0, float((kernels[o] * patch).sum() + w[f"{name}.bias"][o]))
        x = y
    scale = math.sqrt(len(w["front.out.bias"]))
    return [linear(x[:, t].reshape(-1), w, "front.out") * scale for t in range(x.shape[1])]


def attend(query: tuple[int, Array], keys: list[tuple[int, Array]], w: Weights, name: str) -> Array:
    """One frame attends to others; each is (place in the stream, vector). The bias depends on head and distance."""
    biases = w[f"{name}.distance_bias"]
    heads, centre = len(biases), biases.shape[1] // 2
    place, x = query
    q = linear(x, w, f"{name}.query").reshape(heads, -1)
    pairs = [(at, linear(key, w, f"{name}.key_value").reshape(2, heads, -1)) for at, key in keys]
    context = []
    for h in range(heads):
        e = [q[h] @ kv[0, h] / math.sqrt(q.shape[1]) + biases[h, at - place + centre] for at, kv in pairs]
        total = sum(math.exp(one) for one in e)
        context.append(sum(math.exp(one) / total * kv[1, h] for one, (_, kv) in zip(e, pairs, strict=True)))
    return linear(np.concatenate(context), w, f"{name}.out")


def feedforward(x: Array, w: Weights, name: str) -> Array:
    return linear(np.maximum(0, linear(norm(x, w, f"{name}.norm"), w, f"{name}.first")), w, f"{name}.second")


def layer(x: dict[int, Array], left: dict[int, Array], w: Weights, name: str) -> dict[int, Array]:
    """Every frame of a window attends to all of them, and to the `left` inputs; all by place in the stream."""
    h = {place: norm(one, w, f"{name}.norm") for place, one in x.items()}
    keys = [*left.items(), *h.items()]
    y = {place: one + attend((place, h[place]), keys, w, f"{name}.attention") for place, one in x.items()}
    return {place: one + feedforward(one, w, f"{name}.feedforward") for place, one in y.items()}


def encode(features: Array, w: Weights, config: EncoderConfig) -> Array:
    """Window after window [left | centre | right]; the centres are kept."""
    embedded = front(features, w)
    reuse = config.mode == "reuse"
    inputs: list[dict[int, Array]] = [{} for _ in range(config.layers)]  # reuse: a layer's centre inputs so far
    centres = []
    for start in range(0, len(embedded), config.centre_frames):
        end = min(start + config.centre_frames, len(embedded))
        first = start if reuse else max(0, start - config.left_frames)
        x = {place: embedded[place] for place in range(first, min(end + config.right_frames, len(embedded)))}
        for n in range(config.layers):
            left = {p: one for p, one in inputs[n].items() if p >= start - config.left_frames} if reuse else {}
            inputs[n].update({p: norm(x[p], w, f"layers.{n}.norm") for p in range(start, end)})
            x = layer(x, left, w, f"layers.{n}")
        centres += [norm(x[place], w, "norm") for place in range(start, end)]
    return np.array(centres)
