"""The encoder of the moonshine family: blocks of centre | right states of 24 ms; left keys are reused.

In each layer the queries of a block are its centre and right states. The keys are these states and the centre states of
earlier blocks, up to `left_frames` back, as computed in those blocks. Right states are computed again in the next
block. After the last layer, each pair of states becomes an encoder frame of 48 ms. In full mode the whole utterance is
one block.

Keys are stored after rotation. Only distances matter, so positions are counted from the start of the stream.

Shapes: B rows, T encoder frames, S = 2 T states, E width, H heads, D head width, G blocks, M blocks of a group, Q
states of a block, L left states, W encoder frames of a window.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.cross_attention import split_heads
from headsync.attention.dropout import Dropout
from headsync.config import EncoderConfig, NetworkConfig
from headsync.frontend.frame_rate import WAVEFORM
from headsync.nn.rotary import GeluFeedForward, Turns, rotate, turns
from headsync.nn.waveform_front import STATES, WaveformFront

FAR = -1e9  # added to the energy of a key that may not be seen
GROUP_STATES = 40  # blocks whose centres have together this many states share their left keys in `whole`

RotaryEncoderState = tuple[Tensor, ...]  # states so far, and keys and values (B, H, L, D) of each layer


class Sizes(NamedTuple):
    """Sizes of a block in states, and how many blocks form a group."""

    left: int
    centre: int
    right: int
    group: int


class RotaryEncoderLayer(nn.Module):
    """Pre-norm: self-attention with rotary positions, feed-forward."""

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        self.heads, self.attention_dropout = network.heads, network.dropout
        self.norm = nn.LayerNorm(network.width, bias=False)
        self.query_key_value = nn.Linear(network.width, 3 * network.width, bias=False)
        self.out = nn.Linear(network.width, network.width, bias=False)
        self.feedforward = GeluFeedForward(network, norm_bias=False)
        self.dropout = Dropout(network.dropout)

    def forward(self, x_BGQE: Tensor, sizes: Sizes, by: Turns, mask: Tensor) -> Tensor:
        """All blocks of whole utterances at once."""
        batch, blocks = x_BGQE.shape[:2]
        q, k, v = (part.unflatten(0, (batch, blocks)) for part in self._project(x_BGQE.flatten(0, 1), by))
        centre = sizes.centre
        keys, values = (
            torch.cat([_spans(y[..., :centre, :], sizes), _grouped(y[..., centre:, :], sizes.group)], 3) for y in (k, v)
        )
        queries, keys, values = (y.flatten(0, 1) for y in (_grouped(q, sizes.group), keys, values))
        drop = self.attention_dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(queries, keys, values, mask.to(queries.dtype), drop)
        context = context.unflatten(0, (batch, -1)).unflatten(3, (sizes.group, -1)).transpose(2, 3).flatten(1, 2)
        return self._finish(x_BGQE, context.transpose(2, 3).flatten(3))

    def step(
        self,
        x_BQE: Tensor,
        left: tuple[Tensor, ...],
        by: Turns,
        mask_BK: Tensor,
        centre: int | Tensor,
        wanted: int | Tensor,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The first `wanted` states of one block, and the keys and values for the next one."""
        q, k, v = self._project(x_BQE, by)
        x_BQE, q = x_BQE[:, :wanted], q[:, :, :wanted]
        if left:
            k, v = (torch.cat(pair, 2) for pair in zip(left, (k, v), strict=True))
            left = tuple(part[:, :, centre : centre + left[0].shape[2]] for part in (k, v))
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2) + mask_BK[:, None, None]
        context = scores.softmax(-1) @ v
        return self._finish(x_BQE, context.transpose(1, 2).flatten(2)), left

    def _project(self, x_NQE: Tensor, by: Turns) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys at their positions, and values, (N, H, Q, D) each."""
        q, k, v = (split_heads(part, self.heads) for part in self.query_key_value(self.norm(x_NQE)).chunk(3, -1))
        return rotate(q, by), rotate(k, by), v

    def _finish(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.dropout(self.out(context))
        return x + self.dropout(self.feedforward(x))


class RotaryEncoder(nn.Module):
    """Blocks of samples to encoder frames, a window at a time or all windows at once."""

    def __init__(self, config: EncoderConfig, network: NetworkConfig) -> None:
        super().__init__()
        self.config, self.heads, self.embedded_width = config, network.heads, STATES * network.width
        self.front = WaveformFront(network.width)
        self.layers = nn.ModuleList(RotaryEncoderLayer(network) for _ in range(config.layers))
        self.norm = nn.LayerNorm(network.width, bias=False)
        self.pair = nn.Linear(STATES * network.width, network.width, bias=False)
        with torch.no_grad():  # the mean of both states
            self.pair.weight.copy_(torch.eye(network.width).repeat(1, STATES) / STATES)
        self.dropout = Dropout(network.dropout)

    def whole(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """All blocks of whole utterances in parallel, for training: frames, and the number of frames of each row."""
        frames_B = ((lengths_B - WAVEFORM.overlap) // WAVEFORM.stride).clamp(min=0)
        padding = torch.arange(features_BTF.shape[1], device=lengths_B.device) >= lengths_B[:, None]
        features_BTF = features_BTF.masked_fill(padding[:, :, None], 0.0)
        least = WAVEFORM.needed(1)
        features_BTF = F.pad(features_BTF, (0, 0, 0, max(0, least - features_BTF.shape[1])))
        x_BTE, _ = self.front(features_BTF, self.front.start(len(features_BTF)))
        x_BSE = _states(x_BTE)
        exists_BS = torch.arange(x_BSE.shape[1], device=lengths_B.device) < STATES * frames_B[:, None]
        return self._paired(self.states(x_BSE, exists_BS)), frames_B

    def states(self, x_BSE: Tensor, exists_BS: Tensor) -> Tensor:
        """States of the last layer, (B, S, E), all blocks at once."""
        total, sizes = x_BSE.shape[1], self._sizes(x_BSE.shape[1])
        x, mask = self.dropout(_cut(x_BSE, sizes)), _mask(exists_BS, sizes)
        places_GQ = torch.arange(x.shape[1], device=x.device)[:, None] * sizes.centre
        places_GQ = places_GQ + torch.arange(sizes.centre + sizes.right, device=x.device)
        by = turns(places_GQ, x.shape[3] // self.heads, x.dtype)
        by = Turns(*(part.repeat(len(x), 1, 1).unsqueeze(1) for part in by))  # for blocks of all rows, over heads
        for layer in self.layers:
            x = layer(x, sizes, by, mask)
        return self.norm(x[:, :, : sizes.centre].flatten(1, 2)[:, :total])

    def start_front(self, batch: int) -> RotaryEncoderState:
        """The level before the first sample."""
        return (self.front.start(batch),)

    def embed(self, features_BTF: Tensor, state: RotaryEncoderState) -> tuple[Tensor, RotaryEncoderState]:
        """Blocks of samples to pairs of states, and the level after their strides."""
        embedded, sums = self.front(features_BTF, *state)
        return embedded, (sums,)

    def start(self, batch: int) -> RotaryEncoderState:
        weight = self.norm.weight
        seen = torch.zeros(batch, dtype=torch.long, device=weight.device)
        if self.config.mode == "full":
            return (seen,)
        shape = (batch, self.heads, STATES * self.config.left_frames, len(weight) // self.heads)
        return seen, *(weight.new_zeros(shape) for _ in range(2 * self.config.layers))

    def step(
        self, x_BWE: Tensor, length_B: Tensor, state: RotaryEncoderState, centre: int | Tensor
    ) -> tuple[Tensor, RotaryEncoderState]:
        """One window of embedded frames [centre | right], the first `length_B` of which exist -> its centre frames."""
        seen_B, *lefts = state
        x = _states(x_BWE)
        left = lefts[0].shape[2] if lefts else 0
        centre = STATES * centre
        exists_BL = torch.arange(left, device=x.device) >= left - seen_B[:, None]
        exists_BQ = torch.arange(x.shape[1], device=x.device) < STATES * length_B[:, None]
        x = x.masked_fill(~exists_BQ[:, :, None], 0.0)
        mask_BK = (~torch.cat([exists_BL, exists_BQ], 1)).to(x.dtype) * FAR
        places_BQ = seen_B[:, None] + torch.arange(x.shape[1], device=x.device)
        by = turns(places_BQ, x.shape[2] // self.heads, x.dtype)
        by = Turns(by.cos.unsqueeze(1), by.sin.unsqueeze(1))
        after: list[Tensor] = []
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, RotaryEncoderLayer)
            wanted = centre if n == len(self.layers) - 1 else x.shape[1]
            x, kept = layer.step(x, tuple(lefts[2 * n : 2 * n + 2]), by, mask_BK, centre, wanted)
            after += kept
        return self._paired(self.norm(x)), (seen_B + centre, *after)

    def _paired(self, x_BSE: Tensor) -> Tensor:
        return self.pair(x_BSE.reshape(x_BSE.shape[0], -1, self.embedded_width))

    def _sizes(self, total: int) -> Sizes:
        config = self.config
        if config.mode == "full":
            return Sizes(0, total, 0, 1)
        left, centre, right = (STATES * n for n in (config.left_frames, config.centre_frames, config.right_frames))
        return Sizes(left, centre, right, max(1, GROUP_STATES // centre))


def _states(x_BTE: Tensor) -> Tensor:
    """Pairs of states as a sequence: (B, S, E)."""
    return x_BTE.reshape(x_BTE.shape[0], -1, x_BTE.shape[2] // STATES)


def _blocks(total: int, sizes: Sizes) -> int:
    """Number of blocks for `total` states, rounded up to whole groups."""
    return -(-total // (sizes.centre * sizes.group)) * sizes.group


def _cut(x_BSE: Tensor, sizes: Sizes) -> Tensor:
    """States in blocks: (B, G, centre + right, E), zeros after the end."""
    _, centre, right, _ = sizes
    blocks = _blocks(x_BSE.shape[1], sizes)
    padded = F.pad(x_BSE, (0, 0, 0, blocks * centre + right - x_BSE.shape[1]))
    return padded.unfold(1, centre + right, centre).transpose(2, 3)[:, :blocks]


def _grouped(x_BGHQD: Tensor, size: int) -> Tensor:
    """States of a group of blocks, concatenated: (B, G / M, H, M Q, D)."""
    return x_BGHQD.unflatten(1, (-1, size)).transpose(2, 3).flatten(3, 4)


def _spans(x_BGHCD: Tensor, sizes: Sizes) -> Tensor:
    """For each group of blocks its centre states and the left ones before them: (B, G / M, H, L + M C, D)."""
    line = F.pad(x_BGHCD.transpose(1, 2).flatten(2, 3), (0, 0, sizes.left, 0))
    length = sizes.group * sizes.centre
    return line.unfold(2, sizes.left + length, length).permute(0, 2, 1, 4, 3)


def _mask(exists_BS: Tensor, sizes: Sizes) -> Tensor:
    """Additive mask of the keys of each group, its span and its right states: (B G / M, 1, M Q, L + M C + M R)."""
    left, centre, right, group = sizes
    device, blocks = exists_BS.device, _blocks(exists_BS.shape[1], sizes)
    padded = F.pad(exists_BS, (left, blocks * centre + right - exists_BS.shape[1]))
    span = padded.unfold(1, left + group * centre, group * centre)[:, : blocks // group]
    place = torch.arange(left + group * centre, device=device)
    first = torch.arange(group, device=device)[:, None] * centre
    near = (place >= first) & (place < first + left + centre)  # (M, span)
    seen = span[:, :, None] & near
    if right:
        ahead = padded[:, left + centre :].unfold(1, right, centre)[:, :blocks].unflatten(1, (-1, group)).flatten(2)
        own = torch.eye(group, dtype=torch.bool, device=device).repeat_interleave(right, 1)
        seen = torch.cat([seen, ahead[:, :, None] & own], -1)
    seen = seen.repeat_interleave(centre + right, 2).flatten(0, 1)[:, None]
    return torch.zeros(seen.shape, device=device).masked_fill_(~seen, FAR)
