"""The encoder (section 5.1) in all its modes, literally: one window after the other, one frame after the other.

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


def sinusoid(place: int, width: int) -> Array:
    """PE(place, 2i) = sin(place / 10000^(2i / width)), PE(place, 2i + 1) with the cosine."""
    angles = [place / 10_000 ** (2 * i / width) for i in range(width // 2)]
    return np.array([f(angle) for angle in angles for f in (math.sin, math.cos)])


def placed(embedded: list[Array], places: range, first: int, config: EncoderConfig) -> dict[int, Array]:
    """Frames of a window that starts at `first`, which may lie before the utterance."""
    if config.positions == "distance":
        return {place: embedded[place] for place in places}
    return {place: embedded[place] + sinusoid(place - first, len(embedded[place])) for place in places}


def attend(query: tuple[int | None, Array], keys: list[tuple[int | None, Array]], w: Weights, name: str) -> Array:
    """One frame attends to others; each is (place in the stream, vector). The bias depends on head and distance.

    Beyond the table of biases the outermost counts; where one of the two has no place (None) there is no bias.
    """
    biases = w[f"{name}.distance_bias"]
    heads, furthest = len(biases), biases.shape[1] // 2

    def bias(h: int, at: int | None) -> float:
        if place is None or at is None:
            return 0.0
        return float(biases[h, min(max(at - place, -furthest), furthest) + furthest])

    place, x = query
    q = linear(x, w, f"{name}.query").reshape(heads, -1)
    pairs = [(at, linear(key, w, f"{name}.key_value").reshape(2, heads, -1)) for at, key in keys]
    context = []
    for h in range(heads):
        e = [q[h] @ kv[0, h] / math.sqrt(q.shape[1]) + bias(h, at) for at, kv in pairs]
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
    """All frames of an utterance, in the mode that is set."""
    embedded = front(features, w)
    if config.mode == "full":
        return encode_at_once(embedded, w, config)
    if config.mode == "contextual":
        return encode_with_context(embedded, w, config)
    return encode_windows(embedded, w, config)


def encode_windows(embedded: list[Array], w: Weights, config: EncoderConfig) -> Array:
    """Window after window [left | centre | right]; the centres are kept."""
    reuse = config.mode == "reuse"
    inputs: list[dict[int, Array]] = [{} for _ in range(config.layers)]  # reuse: a layer's centre inputs so far
    centres = []
    for start in range(0, len(embedded), config.centre_frames):
        end = min(start + config.centre_frames, len(embedded))
        first = start if reuse else max(0, start - config.left_frames)
        places = range(first, min(end + config.right_frames, len(embedded)))
        x = placed(embedded, places, start - config.left_frames, config)
        for n in range(config.layers):
            left = {p: one for p, one in inputs[n].items() if p >= start - config.left_frames} if reuse else {}
            inputs[n].update({p: norm(x[p], w, f"layers.{n}.norm") for p in range(start, end)})
            x = layer(x, left, w, f"layers.{n}")
        centres += [norm(x[place], w, "norm") for place in range(start, end)]
    return np.array(centres)


def encode_at_once(embedded: list[Array], w: Weights, config: EncoderConfig) -> Array:
    """Every frame attends to all."""
    x = placed(embedded, range(len(embedded)), 0, config)
    for n in range(config.layers):
        x = layer(x, {}, w, f"layers.{n}")
    return np.array([norm(one, w, "norm") for one in x.values()])


def encode_with_context(embedded: list[Array], w: Weights, config: EncoderConfig) -> Array:
    """Window after window; each has one more position, and sees that of the one before as it was before the layer."""
    before: list[Array] = []  # the previous window's context, before each layer
    centres = []
    for start in range(0, len(embedded), config.centre_frames):
        end = min(start + config.centre_frames, len(embedded))
        places = range(max(0, start - config.left_frames), min(end + config.right_frames, len(embedded)))
        x: dict[int | None, Array] = {**placed(embedded, places, start - config.left_frames, config)}
        x[None] = sum(x.values()) / len(places)
        contexts = []
        for n in range(config.layers):
            contexts.append(x[None])
            seen = before[n] if before else x[None]
            h = {place: norm(one, w, f"layers.{n}.norm") for place, one in x.items()}
            keys = [(place, h[place]) for place in places] + [(None, norm(seen, w, f"layers.{n}.norm"))]
            y = {at: one + attend((at, h[at]), keys, w, f"layers.{n}.attention") for at, one in x.items()}
            x = {at: one + feedforward(one, w, f"layers.{n}.feedforward") for at, one in y.items()}
        before = contexts
        centres += [norm(x[place], w, "norm") for place in range(start, end)]
    return np.array(centres)
