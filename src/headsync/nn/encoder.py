"""The encoder: self-attention in windows of left | centre | right frames (section 5.1), in parallel and step by step.

Four modes. *Isolated*, the paper's chunk encoder: all layers run on each [left | centre | right] window, and its centre
is kept. *Reuse*: the window is [centre | right], and each layer adds, as further keys and values, the left frames as
computed in earlier windows, so that a left frame is computed once. In both, right frames are computed again as the
centre of the next window. *Contextual*: isolated windows with one context vector, which carries information from
earlier windows; see `headsync.nn.contextual_block`. *Full*: the whole utterance is one window, the offline encoder.

Positions are encoded in one of two ways, both the same in every window, so that the length of a stream has no limit.
*Distance*: a learned bias per head and distance. The table is as long as a window; in full mode, larger distances have
its outermost entry, which starts at -4 or more. *Sinusoids*: added to the embedded frames by their position in the
window, as in ESPnet; in full mode the window is the utterance.

Shapes: B rows, N windows, W frames of a window, T encoder frames, E width, H heads, D head width, Q queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.cross_attention import split_heads
from headsync.attention.dropout import Dropout, dropout
from headsync.config import EncoderConfig, NetworkConfig
from headsync.frontend.frame_rate import LOG_MEL
from headsync.nn import contextual_block
from headsync.nn.conv import ConvFront
from headsync.nn.layers import FeedForward, positions

FARTHEST_BIAS = -4.0  # least initial bias in full mode: frames far away are attended to from the start


class EncoderState(NamedTuple):
    left_BNLE: Tensor  # N: one entry (isolated: embedded frames) or one per layer (reuse: inputs of its attention)
    seen_B: Tensor  # frames so far, at most those of the left side
    context_BNE: Tensor  # contextual: the last window's context, as input of each layer's attention; else no entry


Keys = Callable[[int, Tensor], tuple[Tensor, Tensor]]  # layer, its inputs -> keys' inputs, which of them exist


class WindowAttention(nn.Module):
    """Self-attention inside windows; `bias_HS` is the initial bias of each head and distance, if there is one."""

    def __init__(self, network: NetworkConfig, bias_HS: Tensor | None) -> None:
        super().__init__()
        self.heads, self.dropout = network.heads, network.dropout
        self.query = nn.Linear(network.width, network.width)
        self.key_value = nn.Linear(network.width, 2 * network.width)
        self.out = nn.Linear(network.width, network.width)
        self.distance_bias = None if bias_HS is None else nn.Parameter(bias_HS.clone())

    def forward(self, x_NQE: Tensor, keys_NKE: Tensor, exists_NK: Tensor, place_QK: Tensor) -> Tensor:
        """`place`: the entry of the table of biases for each query and key."""
        q_NHQD = split_heads(self.query(x_NQE), self.heads)
        k, v = self.key_value(keys_NKE).chunk(2, -1)
        k_NHKD, v_NHKD = split_heads(k, self.heads), split_heads(v, self.heads)
        scores = q_NHQD @ k_NHKD.transpose(-1, -2) / math.sqrt(q_NHQD.shape[-1])
        if self.distance_bias is not None:
            scores = scores + F.pad(self.distance_bias, (0, 1))[:, place_QK]  # the last entry: no bias
        scores = scores.masked_fill(~exists_NK[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = dropout(scores.softmax(-1), self.dropout, self.training)
        return self.out((weights @ v_NHKD).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """Pre-norm Transformer layer."""

    def __init__(self, network: NetworkConfig, bias_HS: Tensor | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(network.width)
        self.attention = WindowAttention(network, bias_HS)
        self.feedforward = FeedForward(network)
        self.dropout = Dropout(network.dropout)

    def forward(self, x_NWE: Tensor, layer: int, keys: Keys, place_WK: Tensor, outputs: slice) -> Tensor:
        h = self.norm(x_NWE)
        keys_NKE, exists_NK = keys(layer, h)
        x = x_NWE[:, outputs] + self.dropout(self.attention(h[:, outputs], keys_NKE, exists_NK, place_WK[outputs]))
        return x + self.dropout(self.feedforward(x))


class ChunkEncoder(nn.Module):
    """Features to encoder frames, a window at a time or all windows at once."""

    def __init__(self, config: EncoderConfig, network: NetworkConfig, features: int) -> None:
        super().__init__()
        self.config, self.embedded_width = config, network.width
        self.span = config.left_frames + config.centre_frames + config.right_frames
        self.front = ConvFront(features, network.kernels, network.width)
        bias_HS = _near_and_far(network.heads, self.span) if config.positions == "distance" else None
        if bias_HS is not None and config.mode == "full":
            bias_HS = bias_HS.clamp(min=FARTHEST_BIAS)
        self.layers = nn.ModuleList(EncoderLayer(network, bias_HS) for _ in range(config.layers))
        self.norm = nn.LayerNorm(network.width)
        self.dropout = Dropout(network.dropout)

    def whole(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """All windows of whole utterances in parallel, for training: frames, and the number of frames of each row."""
        frames_B = ((lengths_B - LOG_MEL.overlap) // LOG_MEL.stride).clamp(min=0)
        padding = torch.arange(features_BTF.shape[1], device=lengths_B.device) >= lengths_B[:, None]
        x_BTE = self.front(features_BTF.masked_fill(padding[:, :, None], 0.0))
        batch, frames = x_BTE.shape[:2]
        left, centre, right = self._window(frames)
        windows = -(-frames // centre)
        starts = torch.arange(windows, device=lengths_B.device) * centre - left
        place_NW = starts[:, None] + torch.arange(left + centre + right, device=lengths_B.device)
        exists_BNW = (place_NW >= 0) & (place_NW < frames_B[:, None, None])
        x_NWE = _cut(x_BTE, left, centre, right, windows)
        y_NCE = self._run(x_NWE, self._keys_of_all(exists_BNW), exists_BNW.flatten(0, 1), slice(left, left + centre))
        return y_NCE.unflatten(0, (batch, windows)).flatten(1, 2)[:, :frames], frames_B

    def start(self, batch: int) -> EncoderState:
        mode, layers, weight = self.config.mode, self.config.layers, self.norm.weight
        left = 0 if mode == "full" else self.config.left_frames
        left_BNLE = weight.new_zeros(batch, layers if mode == "reuse" else 1, left, len(weight))
        context_BNE = weight.new_zeros(batch, layers if mode == "contextual" else 0, len(weight))
        return EncoderState(left_BNLE, torch.zeros(batch, dtype=torch.long, device=weight.device), context_BNE)

    def start_front(self, batch: int) -> tuple[Tensor, ...]:
        """The front end has no state."""
        return ()

    def embed(self, features_BTF: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.front(features_BTF), state

    def step(
        self, x_BWE: Tensor, length_B: Tensor, state: tuple[Tensor, ...], centre: int | Tensor
    ) -> tuple[Tensor, EncoderState]:
        """One window of embedded frames [centre | right], the first `length_B` of which exist -> its centre frames."""
        state = EncoderState(*state)
        left = state.left_BNLE.shape[2]
        exists_BL = torch.arange(left, device=x_BWE.device) >= left - state.seen_B[:, None]
        exists_BW = torch.arange(x_BWE.shape[1], device=x_BWE.device) < length_B[:, None]
        exists_BK = torch.cat([exists_BL, exists_BW], 1)
        x_BWE = x_BWE.masked_fill(~exists_BW[:, :, None], 0.0)
        lefts: list[Tensor] = []  # for the next window
        contexts: list[Tensor] = []

        def with_left(layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
            keys = torch.cat([state.left_BNLE[:, layer], h], 1)
            lefts.append(keys[:, centre : centre + left])  # the last `left` frames up to the end of the centre
            return keys, exists_BK

        def with_context(layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
            keys = contextual_block.step_keys(h, state.context_BNE[:, layer], state.seen_B == 0)
            contexts.append(h[:, -1])
            return keys, contextual_block.exists(exists_BK)

        if self.config.mode == "reuse":
            frames = self._run(x_BWE, with_left, exists_BW, slice(0, centre))
        else:
            window_BWE, _ = with_left(0, x_BWE)
            keys = with_context if self.config.mode == "contextual" else _own_keys(exists_BK)
            frames = self._run(window_BWE, keys, exists_BK, slice(left, left + centre))
        seen_B = (state.seen_B + centre).clamp(max=max(1, left))
        context_BNE = torch.stack(contexts, 1) if contexts else state.context_BNE
        return frames, EncoderState(torch.stack(lefts, 1), seen_B, context_BNE)

    def _window(self, frames: int) -> tuple[int, int, int]:
        """Left, centre and right frames of the window that layers process at a time; in full mode all `frames`."""
        config = self.config
        if config.mode == "full":
            return 0, frames, 0
        left = 0 if config.mode == "reuse" else config.left_frames
        return left, config.centre_frames, config.right_frames

    def _run(self, x_NWE: Tensor, keys: Keys, exists_NW: Tensor, kept: slice) -> Tensor:
        place_WK = self._places(x_NWE.shape[1], x_NWE.device)
        if self.config.positions == "sinusoids":
            x_NWE = x_NWE + positions(torch.arange(x_NWE.shape[1], device=x_NWE.device), x_NWE.shape[2]).to(x_NWE.dtype)
        if self.config.mode == "contextual":
            x_NWE = contextual_block.append(x_NWE, exists_NW)
            place_WK = contextual_block.no_place(place_WK, 2 * self.span - 1)
        x_NWE = self.dropout(x_NWE)
        for index, layer in enumerate(self.layers):
            outputs = kept if index == len(self.layers) - 1 else slice(0, x_NWE.shape[1])
            x_NWE = layer(x_NWE, index, keys, place_WK, outputs)
        return self.norm(x_NWE)

    def _places(self, frames: int, device: torch.device) -> Tensor:
        """The entry of the table of biases for every query and key of a window."""
        left = self.config.left_frames if self.config.mode == "reuse" else 0  # further keys before the window
        keys_K = torch.arange(left + frames, device=device)
        distance = keys_K - keys_K[left:, None]
        return distance.clamp(1 - self.span, self.span - 1) + self.span - 1

    def _keys_of_all(self, exists_BNW: Tensor) -> Keys:
        """The keys of all windows at once."""
        exists_NW = exists_BNW.flatten(0, 1)
        if self.config.mode == "reuse":
            return self._reused_keys(exists_BNW)
        if self.config.mode == "contextual":
            windows = exists_BNW.shape[1]
            return lambda layer, h: (contextual_block.whole_keys(h, windows), contextual_block.exists(exists_NW))
        return _own_keys(exists_NW)

    def _reused_keys(self, exists_BNW: Tensor) -> Keys:
        """Reuse mode: the left keys of a window are centre inputs of earlier windows."""
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
    """The initial bias: every head attends around another distance, and more widely at larger distances.

    With zeros the network would ignore order at first, and learn it slowly.
    """
    head = torch.arange(heads, dtype=torch.get_default_dtype())[:, None]
    centre = head * (-1) ** head  # 0, -1, 2, -3, ...: before and after
    distance = torch.arange(1 - span, span) - centre
    return -distance.abs() / (1 + head / 2)


def _own_keys(exists_NW: Tensor) -> Keys:
    """A window's keys are its own frames."""
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
