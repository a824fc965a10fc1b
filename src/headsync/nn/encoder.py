"""The chunk encoder: self-attention in windows of left | centre | right frames (section 5.1), whole and step by step.

Two modes. *Isolated*: all layers run on each [left | centre | right] window, and its centre is kept. *Reuse*: the
window is [centre | right], and each layer adds, as further keys and values, the left frames as the window before left
them, so that a left frame is computed once. In both, right frames are computed again as the centre of the next window.

Order in time enters by a learned bias per head and distance, the same in every window, so that a stream has no end.

Shapes: B rows, N windows, W frames of a window, T encoder frames, E width, H heads, D head width, Q queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.config import EncoderConfig, NetworkConfig
from headsync.framing import OVERLAP_FRAMES, SUBSAMPLING
from headsync.nn.blocks import FeedForward, split_heads
from headsync.nn.conv import ConvFront


class EncoderState(NamedTuple):
    """What a stream remembers between windows."""

    left_BNLE: Tensor  # N: one entry (isolated: embedded frames) or one per layer (reuse: inputs of its attention)
    seen_B: Tensor  # frames so far, as far as the left side can hold them


Keys = Callable[[int, Tensor], tuple[Tensor, Tensor]]  # layer, its inputs -> keys' inputs, which of them exist


class WindowAttention(nn.Module):
    """Self-attention inside windows, with a learned bias for each distance."""

    def __init__(self, network: NetworkConfig, span: int) -> None:
        super().__init__()
        self.heads, self.span, self.dropout = network.heads, span, network.attention_dropout
        self.query = nn.Linear(network.width, network.width)
        self.key_value = nn.Linear(network.width, 2 * network.width)
        self.out = nn.Linear(network.width, network.width)
        self.distance_bias = nn.Parameter(_near_and_far(network.heads, span))

    def forward(self, x_NQE: Tensor, keys_NKE: Tensor, exists_NK: Tensor, first: int) -> Tensor:
        """`first`: where among the keys the queries begin."""
        q_NHQD = split_heads(self.query(x_NQE), self.heads)
        k, v = self.key_value(keys_NKE).chunk(2, -1)
        k_NHKD, v_NHKD = split_heads(k, self.heads), split_heads(v, self.heads)
        scores = q_NHQD @ k_NHKD.transpose(-1, -2) / math.sqrt(q_NHQD.shape[-1])
        scores = scores + self._bias(x_NQE.shape[1], keys_NKE.shape[1], first)
        scores = scores.masked_fill(~exists_NK[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        return self.out((weights @ v_NHKD).transpose(1, 2).flatten(2))

    def _bias(self, queries: int, keys: int, first: int) -> Tensor:
        device = self.distance_bias.device
        distance = torch.arange(keys, device=device) - torch.arange(first, first + queries, device=device)[:, None]
        return self.distance_bias[:, distance + self.span - 1]


class EncoderLayer(nn.Module):
    """Pre-norm Transformer layer."""

    def __init__(self, network: NetworkConfig, span: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(network.width)
        self.attention = WindowAttention(network, span)
        self.feedforward = FeedForward(network)
        self.dropout = nn.Dropout(network.dropout)

    def forward(self, x_NWE: Tensor, layer: int, keys: Keys, outputs: slice) -> Tensor:
        h = self.norm(x_NWE)
        keys_NKE, exists_NK = keys(layer, h)
        first = keys_NKE.shape[1] - h.shape[1] + (outputs.start or 0)
        x = x_NWE[:, outputs] + self.dropout(self.attention(h[:, outputs], keys_NKE, exists_NK, first))
        return x + self.dropout(self.feedforward(x))


class ChunkEncoder(nn.Module):
    """Features to encoder frames, a window at a time or all windows at once."""

    def __init__(self, config: EncoderConfig, network: NetworkConfig, features: int) -> None:
        super().__init__()
        self.config = config
        span = config.left_frames + config.centre_frames + config.right_frames
        self.front = ConvFront(features, network.kernels, network.width)
        self.layers = nn.ModuleList(EncoderLayer(network, span) for _ in range(config.layers))
        self.norm = nn.LayerNorm(network.width)
        self.dropout = nn.Dropout(network.dropout)

    def whole(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """All windows of whole utterances at once, for training: frames, and how many of each row exist."""
        batch, c, r = len(features_BTF), self.config.centre_frames, self.config.right_frames
        frames_B = ((lengths_B - OVERLAP_FRAMES) // SUBSAMPLING).clamp(min=0)
        padding = torch.arange(features_BTF.shape[1], device=lengths_B.device) >= lengths_B[:, None]
        x_BTE = self.front(features_BTF.masked_fill(padding[:, :, None], 0.0))
        windows = -(-x_BTE.shape[1] // c)
        left = self.config.left_frames if self.config.mode == "isolated" else 0
        x_NWE = _cut(x_BTE, left, c, r, windows)
        starts = torch.arange(windows, device=lengths_B.device) * c - left
        place_NW = starts[:, None] + torch.arange(left + c + r, device=lengths_B.device)
        exists_BNW = (place_NW >= 0) & (place_NW < frames_B[:, None, None])
        keys = self._keys_of_all(exists_BNW) if self.config.mode == "reuse" else _own_keys(exists_BNW.flatten(0, 1))
        return self._run(x_NWE, keys).unflatten(0, (batch, windows)).flatten(1, 2)[:, : x_BTE.shape[1]], frames_B

    def start(self, batch: int) -> EncoderState:
        entries = self.config.layers if self.config.mode == "reuse" else 1
        left = self.norm.weight.new_zeros(batch, entries, self.config.left_frames, self.norm.weight.shape[0])
        return EncoderState(left, torch.zeros(batch, dtype=torch.long, device=left.device))

    def step(self, x_BWE: Tensor, length_B: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """One window of embedded frames [centre | right], the first `length_B` of which exist -> its centre frames."""
        c, left = self.config.centre_frames, self.config.left_frames
        device = x_BWE.device
        exists_BL = torch.arange(left, device=device) >= left - state.seen_B[:, None]
        exists_BW = torch.arange(x_BWE.shape[1], device=device) < length_B[:, None]
        exists_BK = torch.cat([exists_BL, exists_BW], 1)
        x_BWE = x_BWE.masked_fill(~exists_BW[:, :, None], 0.0)
        kept: list[Tensor] = []

        def keys_with_left(layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
            keys = torch.cat([state.left_BNLE[:, layer], h], 1)
            kept.append(keys[:, c : c + left])  # the last `left` frames up to the end of the centre
            return keys, exists_BK

        if self.config.mode == "reuse":
            frames = self._run(x_BWE, keys_with_left)
        else:
            window, _ = keys_with_left(0, x_BWE)
            frames = self._run(window, _own_keys(exists_BK))
        seen_B = (state.seen_B + torch.full_like(state.seen_B, c)).clamp(max=left)
        return frames, EncoderState(torch.stack(kept, 1), seen_B)

    def _run(self, x_NWE: Tensor, keys: Keys) -> Tensor:
        c, r = self.config.centre_frames, self.config.right_frames
        x_NWE = self.dropout(x_NWE)
        for index, layer in enumerate(self.layers):
            last = index == len(self.layers) - 1
            start = x_NWE.shape[1] - c - r
            outputs = slice(start, start + c) if last else slice(0, x_NWE.shape[1])
            x_NWE = layer(x_NWE, index, keys, outputs)
        return self.norm(x_NWE)

    def _keys_of_all(self, exists_BNW: Tensor) -> Keys:
        """Reuse mode over all windows: the left keys of a window are centre inputs of the windows before."""
        batch, windows, _ = exists_BNW.shape
        c, left = self.config.centre_frames, self.config.left_frames
        place_NL = torch.arange(windows)[:, None] * c - left + torch.arange(left)
        exists_BNL = (place_NL >= 0).to(exists_BNW.device).expand(batch, -1, -1)
        exists_NK = torch.cat([exists_BNL, exists_BNW], 2).flatten(0, 1)

        def keys(layer: int, h_NWE: Tensor) -> tuple[Tensor, Tensor]:
            centres_BTE = h_NWE.unflatten(0, (batch, windows))[:, :, :c].flatten(1, 2)
            left_NLE = _cut(centres_BTE, left, 0, 0, windows, hop=c)
            return torch.cat([left_NLE, h_NWE], 1), exists_NK

        return keys


def _near_and_far(heads: int, span: int) -> Tensor:
    """Where the bias starts: every head looks around a place of its own, the further away the more widely.

    From zeros the network cannot tell frames apart by order, and learns to only as fast as the bias can move.
    """
    head = torch.arange(heads, dtype=torch.get_default_dtype())[:, None]
    centre = head * (-1) ** head  # 0, -1, 2, -3, ...: before and after
    distance = torch.arange(1 - span, span) - centre
    return -distance.abs() / (1 + head / 2)


def _own_keys(exists_NW: Tensor) -> Keys:
    """Isolated mode: a window's keys are its own frames."""
    return lambda layer, h: (h, exists_NW)


def _cut(x_BTE: Tensor, left: int, centre: int, right: int, windows: int, hop: int = 0) -> Tensor:
    """(B, T, E) -> (B * windows, left + centre + right, E); zeros where there is no frame."""
    hop = hop or centre
    width = left + centre + right
    if width == 0:
        return x_BTE.new_zeros(len(x_BTE) * windows, 0, x_BTE.shape[2])
    behind = max(0, (windows - 1) * hop + width - left - x_BTE.shape[1])
    padded = F.pad(x_BTE, (0, 0, left, behind))
    return padded.unfold(1, width, hop)[:, :windows].transpose(2, 3).flatten(0, 1)
