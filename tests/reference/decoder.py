"""One output step of the whole decoder, literally: layer after layer, head after head.

The subject is what the mechanisms do. Norms, linear layers and feed-forward parts are those of the network, at one
position after the other. Nothing is a stream here: the whole utterance is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from headsync.nn.decoder import DecoderLayer, SelfAttention
from headsync.nn.layers import positions
from headsync.nn.model import Model
from reference import Array
from reference.mechanisms import STEPS, Earlier


@dataclass(frozen=True)
class Text:
    """A hypothesis: y_1 ... y_i, and what step i + 1 needs of the steps before."""

    y: tuple[int, ...] = ()
    attention: float = 0.0  # sum of log p(y_i | ...) of the decoder
    joint: float = 0.0
    t: tuple[int, ...] = ()  # t_1 ... t_i
    s: int = 0  # sum of s_i^{h,l} over steps, heads and layers
    steps: int = 0
    past: tuple[tuple[torch.Tensor, ...], ...] = field(default=())  # of each layer: inputs of its self-attention
    earlier: tuple[Earlier, ...] = field(default=())  # of each layer that attends: what its mechanism keeps
    label: tuple[float, ...] = ()  # r^n and r^b of y from before the first frame on, where a search carries them
    blank: tuple[float, ...] = ()


@dataclass(frozen=True)
class WholeDecoder:
    """A model and the encoder frames of an utterance, (T, width)."""

    model: Model
    mechanism: str
    frames: torch.Tensor

    def step(self, text: Text, limit: int) -> tuple[Array, int, Text]:
        """Lines 3 to 15 of Algorithm 1: log p of y_i, the furthest frame of any head, and the text after the step."""
        decoder, i = self.model.decoder, len(text.y) + 1
        y, width = (text.y[-1] if text.y else self.model.start), decoder.network.width
        x = decoder.embedding.weight[y] * math.sqrt(width) + positions(torch.tensor(i - 1), width).double()
        past, earlier, furthest, s = [], [], 0, 0
        for l, layer in enumerate(decoder.layers):  # noqa: E741
            past.append((*(text.past[l] if text.past else ()), layer.norm_self(x)))
            x = x + _self_attention(layer.self_attention, past[l])
            if layer.attends:
                n = len(earlier)
                context, N, kept = self._cross(layer, n, x, limit, text.earlier[n] if text.earlier else ())
                x, furthest, s = x + context, max(furthest, *N.values()), s + sum(N.values())
                earlier.append(kept)
            x = x + layer.feedforward(x)
        log_p = decoder.out(decoder.norm(x)).log_softmax(-1).numpy()
        after = replace(text, s=text.s + s, steps=text.steps + 1, past=tuple(past), earlier=tuple(earlier))
        return log_p, furthest, after

    def r(self, text: Text) -> float:
        """Eq. (10), over the layers that attend."""
        layers, H, T = len(self.model.decoder.attending), self.model.decoder.network.heads, len(self.frames)
        return text.s / (layers * H * text.steps * T)

    def _cross(
        self, layer: DecoderLayer, n: int, x: torch.Tensor, limit: int, earlier: Earlier
    ) -> tuple[torch.Tensor, dict[int, int], Earlier]:
        q = layer.cross.query(layer.norm_cross(x)).reshape(layer.cross.heads, -1).numpy()
        k, v = self._keys_and_values(n)
        halted, kept = STEPS[self.mechanism](layer.cross.mechanism, q, k, v, limit, earlier)
        concatenated = np.concatenate([halted.c[h] for h in sorted(halted.c)])
        return layer.cross.out(torch.tensor(concatenated)), halted.N, kept

    def _keys_and_values(self, n: int) -> tuple[Array, Array]:
        """Keys and values of all frames in the n-th layer that attends, (H, T, d) each."""
        decoder = self.model.decoder
        memory = decoder.place(decoder.project(self.frames[None]), 0)
        return memory.keys_BNHTD[0, n].numpy(), memory.values_BNHTD[0, n].numpy()


def _self_attention(attention: SelfAttention, past: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Eq. (1) to (3) of the last position over all positions so far, head by head."""
    projected = [attention.query_key_value(z).chunk(3) for z in past]
    width = len(past[0]) // attention.heads
    heads = []
    for h in range(attention.heads):
        part = slice(h * width, (h + 1) * width)
        q = projected[-1][0][part]
        energies = torch.stack([q @ k[part] / math.sqrt(width) for _, k, _ in projected])
        weights = energies.softmax(0)
        heads.append(sum(w * v[part] for w, (_, _, v) in zip(weights, projected, strict=True)))
    return attention.out(torch.cat(heads))
