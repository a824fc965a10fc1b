"""The network as ONNX graphs, one module for each graph.

A graph is a pure function: state is an input and an output. Two things differ from the network in training, for speed.

Keys and values of the tokens of all hypotheses are in one pool, each token once, and a mask selects those of a
hypothesis. Hypotheses share their common prefixes, and reordering them reorders masks. See `headsync.engine.kv_pool`.

Frames and tokens are the leading axis of a layer's arrays, (T, M, H, D) and (P, H, D), so that growing arrays stay
contiguous. Rows that share a memory are computed in one product.

Shapes: B rows, M memories (B is a multiple of M), T frames, P tokens in the pool, E width, H heads, D head width, W
frames of a window, F features, V classes, N decoder layers (for frames: the layers that attend to them).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headsync.attention.base import Attended, AttentionWindow, MechanismState
from headsync.nn.decoder import DecoderLayer
from headsync.nn.model import Model


class _Graph(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model


class Embed(_Graph):
    """Feature frames to embedded encoder frames."""

    def forward(self, features_BTF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        embedded, after = self.model.encoder.embed(features_BTF, state)
        return embedded, *after


class Encode(_Graph):
    """A window of the encoder, CTC, and the decoder's keys and values of the frames."""

    def forward(self, x_BWE: Tensor, length_B: Tensor, centre: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        frames_BTE, after = self.model.encoder.step(x_BWE, length_B, state, centre)
        layers = [layer.cross for layer in self.model.decoder.attending]
        keys = torch.stack([cross.key(frames_BTE) for cross in layers], 1)  # (B, N, T, E), as are values
        values = torch.stack([cross.value(frames_BTE) for cross in layers], 1)
        return self.model.ctc(frames_BTE).log_softmax(-1), keys, values, *after


class Places(_Graph):
    """The positional terms of the keys and values of frames: (N, T, E) each."""

    def forward(self, place_T: Tensor) -> tuple[Tensor, Tensor]:
        layers = [layer.cross for layer in self.model.decoder.attending]
        places_TE = self.model.decoder.frame_positions(place_T)
        keys = torch.stack([places_TE @ cross.key.weight.T for cross in layers])
        return keys, torch.stack([places_TE @ cross.value.weight.T for cross in layers])


class Decode(_Graph):
    """One output step of every hypothesis."""

    def forward(
        self,
        tokens_B: Tensor,
        place_B: Tensor,
        window: tuple[Tensor, ...],
        hidden_BP: Tensor,  # a large negative number if a token does not belong to the hypothesis, else 0
        pool: tuple[tuple[Tensor, ...], ...],  # for each layer keys and values
        memory: tuple[tuple[Tensor, ...], ...],  # for each layer that attends
        states: tuple[MechanismState, ...],
    ) -> tuple[Any, ...]:
        decoder = self.model.decoder
        x_BE = decoder.embed(tokens_B, place_B)
        written, outcomes = [], []
        seen = zip(memory, states, strict=True)
        for layer, own in zip(decoder.layers, pool, strict=True):
            x_BE, queries_keys_values = _attend_to_tokens(layer, x_BE, place_B, own, hidden_BP)
            if layer.attends:
                x_BE, attended = _attend_to_frames(layer, x_BE, *next(seen), AttentionWindow(*window))
                outcomes.append(attended)
            x_BE = x_BE + layer.feedforward(x_BE)
            written.append(queries_keys_values)
        return (
            decoder.scores(x_BE).log_softmax(-1),
            torch.stack([a.end_BH for a in outcomes], 1),
            torch.stack([a.ready_B for a in outcomes], 1).all(1),
            outcomes[-1].weights_BHT,
            torch.stack(written, 1),  # (B, N, 3 E)
            tuple(a.state for a in outcomes),
        )


def _attend_to_tokens(
    layer: DecoderLayer, x_BE: Tensor, place_B: Tensor, pool: tuple[Tensor, ...], hidden_BP: Tensor
) -> tuple[Tensor, Tensor]:
    """Self-attention to the tokens in the pool and to this one; also returns the query, key and value of this one."""
    keys_PHD, values_PHD = pool
    attention, width = layer.self_attention, keys_PHD.shape[2]
    own_B3E = attention.project(layer.norm_self(x_BE), place_B)
    q, k, v = own_B3E.reshape(-1, 3 * attention.heads, width).transpose(0, 1).split(attention.heads)  # (H, B, D)
    past_HBP = (q @ keys_PHD.permute(1, 2, 0)) / math.sqrt(width) + hidden_BP
    self_HB1 = (q * k).sum(-1, keepdim=True) / math.sqrt(width)
    weights = torch.cat([past_HBP, self_HB1], -1).softmax(-1)
    context_HBD = weights[..., :-1] @ values_PHD.transpose(0, 1) + weights[..., -1:] * v
    context_BE = context_HBD.transpose(0, 1).reshape(-1, attention.heads * width)
    return x_BE + attention.out(context_BE), own_B3E


def _attend_to_frames(
    layer: DecoderLayer, x_BE: Tensor, memory: tuple[Tensor, ...], state: MechanismState, window: AttentionWindow
) -> tuple[Tensor, Attended]:
    keys, values = (part_TMHD.permute(1, 2, 0, 3) for part_TMHD in memory)
    return layer.attend_to_frames(x_BE, (keys, values), state, window)
