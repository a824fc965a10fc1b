"""The self-attention decoder with online cross-attention (sections 2 to 4), in parallel and step by step.

Shapes: B rows, L output steps, T encoder frames, E width, H heads, D head width, V output classes, N layers (for
frames: the layers that attend to them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from headsync.attention import build_mechanism, mechanism_of
from headsync.attention.base import Aligned, Attended, AttentionWindow, Mechanism, MechanismState, Phase
from headsync.attention.cross_attention import CrossAttention, split_heads
from headsync.attention.dropout import Dropout, dropout
from headsync.config import DecoderConfig, NetworkConfig
from headsync.nn.layers import FeedForward, positions


class ProjectedFrames(NamedTuple):
    """Keys and values of encoder frames in every layer that attends to them, projected once.

    The position of a frame is counted from the start of the utterance, which may be known only after the projection.
    Projection is linear, so `Decoder.place` can add the position later.
    """

    keys_BNHTD: Tensor
    values_BNHTD: Tensor


class DecoderState(NamedTuple):
    """The state of a hypothesis: keys and values of its tokens, and the state of each layer's mechanism."""

    keys_BNHLD: Tensor
    values_BNHLD: Tensor
    mechanisms: tuple[MechanismState, ...]


class Stepped(NamedTuple):
    """One output step: scores, frames consumed, whether it is decided, and the state after it."""

    logits_BV: Tensor
    end_BNH: Tensor  # s_i^{h,l}
    ready_B: Tensor  # False: the rest is undefined; repeat the step with the same state when more frames have arrived
    weights_BHT: Tensor  # of the highest layer that attends
    state: DecoderState


class SelfAttention(nn.Module):
    """Causal self-attention over output steps, eq. (1) to (3)."""

    def __init__(self, network: NetworkConfig, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout = network.heads, network.dropout
        self.query_key_value = nn.Linear(network.width, 3 * network.width, bias)
        self.out = nn.Linear(network.width, network.width, bias)

    def project(self, x: Tensor, places: Tensor) -> Tensor:
        """Query, key and value of tokens at these places, concatenated."""
        return self.query_key_value(x)

    def whole(self, x_BLE: Tensor) -> Tensor:
        places_L = torch.arange(x_BLE.shape[1], device=x_BLE.device)
        q, k, v = (split_heads(part, self.heads) for part in self.project(x_BLE, places_L).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(x_BLE.shape[1], x_BLE.shape[1], dtype=torch.bool, device=x_BLE.device).triu(1)
        weights = dropout(scores.masked_fill(future, -torch.inf).softmax(-1), self.dropout, self.training)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def step(self, x_BE: Tensor, past_k: Tensor, past_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place_1 = torch.tensor([past_k.shape[2]], device=x_BE.device)
        q, k, v = (split_heads(part, self.heads) for part in self.project(x_BE.unsqueeze(1), place_1).chunk(3, -1))
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(1)), k, v


class DecoderLayer(nn.Module):
    """Pre-norm: self-attention, online cross-attention (in layers that attend to frames), feed-forward."""

    has_bias = True  # of norms and projections, other than that of keys in cross-attention
    attention_class: type[SelfAttention] = SelfAttention
    feedforward_class: type[FeedForward] = FeedForward

    def __init__(self, config: DecoderConfig, network: NetworkConfig, attends: bool) -> None:
        super().__init__()
        self.norm_self = nn.LayerNorm(network.width, bias=self.has_bias)
        self.self_attention = self.attention_class(network, self.has_bias)
        if attends:
            self.norm_cross = nn.LayerNorm(network.width, bias=self.has_bias)
            mechanism = self.build_mechanism(config, network)
            self.cross = CrossAttention(network.width, network.heads, mechanism, network.dropout, self.has_bias)
        self.attends = attends
        self.feedforward = self.feedforward_class(network, self.has_bias)
        self.dropout = Dropout(network.dropout)

    @staticmethod
    def build_mechanism(config: DecoderConfig, network: NetworkConfig) -> Mechanism:
        return build_mechanism(config, network.heads, network.width // network.heads)

    def whole(self, x_BLE: Tensor, frames_BTE: Tensor, limit_BL: Tensor) -> tuple[Tensor, Aligned | None]:
        x, aligned = x_BLE + self.dropout(self.self_attention.whole(self.norm_self(x_BLE))), None
        if self.attends:
            context, aligned = self.cross.whole(self.norm_cross(x), *self.cross.project(frames_BTE), limit_BL)
            x = x + self.dropout(context)
        return x + self.dropout(self.feedforward(x)), aligned

    def attend_to_tokens(self, x_BE: Tensor, own: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Self-attention of one step; also returns keys and values including those of this step."""
        y, keys, values = self.self_attention.step(self.norm_self(x_BE), *own)
        return x_BE + y, keys, values

    def attend_to_frames(
        self, x_BE: Tensor, memory: tuple[Tensor, Tensor], state: MechanismState, window: AttentionWindow
    ) -> tuple[Tensor, Attended]:
        context, attended = self.cross.step(self.norm_cross(x_BE), *memory, state, window)
        return x_BE + context, attended


class Decoder(nn.Module):
    """Tokens and encoder frames to scores of the next token."""

    layer_class = DecoderLayer
    is_tied = False  # whether the embedding is the output layer; it has one more row then, an input only

    def __init__(self, config: DecoderConfig, network: NetworkConfig, classes: int) -> None:
        super().__init__()
        self.network = network = replace(network, heads=config.heads or network.heads)
        self.has_frame_positions = config.frame_positions
        self.embedding = nn.Embedding(classes + self.is_tied, network.width)
        nn.init.normal_(self.embedding.weight, std=network.width**-0.5)
        attends = mechanism_of(config).attends
        self.stack = nn.ModuleList(self.layer_class(config, network, attends(config, n)) for n in range(config.layers))
        self.norm = nn.LayerNorm(network.width, bias=self.layer_class.has_bias)
        if not self.is_tied:
            self.out = nn.Linear(network.width, classes)
        self.dropout = Dropout(network.dropout)

    @property
    def layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.stack))

    @property
    def attending(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if layer.attends]

    def set_phase(self, phase: Phase) -> None:
        for layer in self.attending:
            layer.cross.mechanism.phase = phase

    def whole(self, tokens_BL: Tensor, frames_BTE: Tensor, limit_BL: Tensor) -> tuple[Tensor, list[Aligned]]:
        """All output steps at once, for training: `tokens` begins with <sos>."""
        outputs, alignments = self.layer_outputs(tokens_BL, frames_BTE, limit_BL)
        return self.scores(outputs[-1]), alignments

    def layer_outputs(
        self, tokens_BL: Tensor, frames_BTE: Tensor, limit_BL: Tensor, inputs_NBLE: Sequence[Tensor] | None = None
    ) -> tuple[list[Tensor], list[Aligned]]:
        """Outputs (B, L, E) and alignments of all layers; `inputs_NBLE` replace the outputs of the layers below."""
        x, frames_BTE = self.inputs(tokens_BL, frames_BTE, limit_BL)
        outputs, alignments = [], []
        for n, layer in enumerate(self.layers):
            x, aligned = layer.whole(x if inputs_NBLE is None else inputs_NBLE[n], frames_BTE, limit_BL)
            outputs.append(x)
            if aligned is not None:
                alignments.append(aligned)
        return outputs, alignments

    def inputs(self, tokens_BL: Tensor, frames_BTE: Tensor, limit_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of the layers: embedded tokens, and frames with their positions."""
        exists = torch.arange(frames_BTE.shape[1], device=limit_BL.device) < limit_BL.amax(1, keepdim=True)
        frames_BTE = frames_BTE.masked_fill(~exists.unsqueeze(-1), 0.0)  # padding has no effect, even if it is NaN
        frames_BTE = frames_BTE + self._frame_positions(0, frames_BTE.shape[1])
        places_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        return self.dropout(self.embed(tokens_BL, places_L)), frames_BTE

    def project(self, frames_BTE: Tensor, bias: bool = True) -> ProjectedFrames:
        """Keys and values of new encoder frames, for all layers that attend; `place` them before a step."""
        pairs = [layer.cross.project(frames_BTE, bias) for layer in self.attending]
        return ProjectedFrames(torch.stack([k for k, _ in pairs], 1), torch.stack([v for _, v in pairs], 1))

    def place(self, memory: ProjectedFrames, first: int) -> ProjectedFrames:
        """Projected frames with their places, the first one being frame `first` of the utterance."""
        if not self.has_frame_positions:
            return memory
        places_BTE = self._frame_positions(first, memory.keys_BNHTD.shape[3]).unsqueeze(0)
        placed = zip(memory, self.project(places_BTE, bias=False), strict=True)
        return ProjectedFrames(*(part + shift for part, shift in placed))

    def start(self, batch: int) -> DecoderState:
        heads = self.network.heads
        shape = (batch, len(self.stack), heads, 0, self.network.width // heads)
        none = self.norm.weight.new_zeros(shape)
        states = tuple(layer.cross.mechanism.start(batch) for layer in self.attending)
        return DecoderState(none, none, states)

    def step(self, tokens_B: Tensor, memory: ProjectedFrames, state: DecoderState, window: AttentionWindow) -> Stepped:
        """The step after `tokens`, on the placed frames in `memory`. A memory of one row serves all hypotheses."""
        place = torch.full_like(tokens_B, state.keys_BNHLD.shape[3])
        x = self.embed(tokens_B, place)
        keys, values, outcomes = [], [], []
        frames = zip(memory.keys_BNHTD.unbind(1), memory.values_BNHTD.unbind(1), strict=True)
        seen = zip(frames, state.mechanisms, strict=True)
        for n, layer in enumerate(self.layers):
            x, k, v = layer.attend_to_tokens(x, (state.keys_BNHLD[:, n], state.values_BNHLD[:, n]))
            if layer.attends:
                x, attended = layer.attend_to_frames(x, *next(seen), window)
                outcomes.append(attended)
            x = x + layer.feedforward(x)
            keys.append(k)
            values.append(v)
        after = DecoderState(torch.stack(keys, 1), torch.stack(values, 1), tuple(a.state for a in outcomes))
        return Stepped(
            logits_BV=self.scores(x),
            end_BNH=torch.stack([a.end_BH for a in outcomes], 1),
            ready_B=torch.stack([a.ready_B for a in outcomes], 1).all(1),
            weights_BHT=outcomes[-1].weights_BHT,
            state=after,
        )

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        width = self.network.width
        return self.embedding(tokens) * math.sqrt(width) + positions(places, width).to(self.embedding.weight.dtype)

    def scores(self, x: Tensor) -> Tensor:
        """Logits of the next token."""
        return self.out(self.norm(x))

    def frame_positions(self, frames_T: Tensor) -> Tensor:
        """Position embeddings of encoder frames, (T, E): sinusoids, or zeros without `frame_positions`."""
        sinusoids_TE = positions(frames_T, self.network.width).to(self.norm.weight.dtype)
        return sinusoids_TE if self.has_frame_positions else torch.zeros_like(sinusoids_TE)

    def _frame_positions(self, first: int, count: int) -> Tensor:
        return self.frame_positions(torch.arange(first, first + count, device=self.norm.weight.device))
