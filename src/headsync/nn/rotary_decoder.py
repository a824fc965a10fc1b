"""The decoder of the moonshine family: rotary self-attention, online cross-attention, gated feed-forward.

Frames have no positions. Embeddings are tied with the output layer. The same token starts and ends a sentence; as an
input it has a separate embedding, the last one.

Shapes as in `headsync.nn.decoder`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention import build_mechanism, mechanism_of
from headsync.attention.cross_attention import CrossAttention
from headsync.attention.dropout import Dropout
from headsync.config import DecoderConfig, NetworkConfig
from headsync.nn.decoder import Decoder, DecoderLayer, SelfAttention
from headsync.nn.rotary import GatedFeedForward, rotate, turns


class RotarySelfAttention(SelfAttention):
    """Causal self-attention with rotary positions and without biases."""

    def __init__(self, network: NetworkConfig) -> None:
        nn.Module.__init__(self)
        self.heads, self.dropout = network.heads, network.dropout
        self.query_key_value = nn.Linear(network.width, 3 * network.width, bias=False)
        self.out = nn.Linear(network.width, network.width, bias=False)

    def project(self, x: Tensor, places: Tensor) -> Tensor:
        width = x.shape[-1]
        queries_keys, values = self.query_key_value(x).split([2 * width, width], -1)
        by = turns(places, width // self.heads, x.dtype).over_heads()
        turned = rotate(queries_keys.unflatten(-1, (2 * self.heads, width // self.heads)), by)
        return torch.cat([turned.flatten(-2), values], -1)


class RotaryDecoderLayer(DecoderLayer):
    """Pre-norm: self-attention, online cross-attention (in layers that attend to frames), gated feed-forward."""

    def __init__(self, config: DecoderConfig, network: NetworkConfig, attends: bool) -> None:
        nn.Module.__init__(self)
        self.norm_self = nn.LayerNorm(network.width, bias=False)
        self.self_attention = RotarySelfAttention(network)
        if attends:
            self.norm_cross = nn.LayerNorm(network.width, bias=False)
            mechanism = build_mechanism(config, network.heads, network.width // network.heads)
            mechanism.bias_each_head()
            self.cross = CrossAttention(network.width, network.heads, mechanism, network.dropout, bias=False)
        self.attends = attends
        self.feedforward = GatedFeedForward(network)
        self.dropout = Dropout(network.dropout)


class RotaryDecoder(Decoder):
    """Tokens and encoder frames to scores of the next token."""

    def __init__(self, config: DecoderConfig, network: NetworkConfig, classes: int) -> None:
        nn.Module.__init__(self)
        self.network = network = replace(network, heads=config.heads or network.heads)
        self.has_frame_positions = False
        self.embedding = nn.Embedding(classes + 1, network.width)
        nn.init.normal_(self.embedding.weight, std=network.width**-0.5)
        attends = mechanism_of(config).attends
        layers = (RotaryDecoderLayer(config, network, attends(config, n)) for n in range(config.layers))
        self.stack = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(network.width, bias=False)
        self.dropout = Dropout(network.dropout)

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        last = self.embedding.num_embeddings - 1
        return self.embedding(torch.where(tokens == last - 1, last, tokens))

    def scores(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight[:-1])
