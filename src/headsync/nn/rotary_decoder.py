"""The decoder of the moonshine family: rotary self-attention, online cross-attention, gated feed-forward.

Frames have no positions. Embeddings are tied with the output layer. The same token starts and ends a sentence; as an
input it has a separate embedding, the last one.

Shapes as in `headsync.nn.decoder`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.attention.base import Mechanism
from headsync.config import DecoderConfig, NetworkConfig
from headsync.nn.decoder import Decoder, DecoderLayer, SelfAttention
from headsync.nn.rotary import GatedFeedForward, rotate, turns


class RotarySelfAttention(SelfAttention):
    def project(self, x: Tensor, places: Tensor) -> Tensor:
        width = x.shape[-1]
        queries_keys, values = self.query_key_value(x).split([2 * width, width], -1)
        by = turns(places, width // self.heads, x.dtype).over_heads()
        turned = rotate(queries_keys.unflatten(-1, (2 * self.heads, width // self.heads)), by)
        return torch.cat([turned.flatten(-2), values], -1)


class RotaryDecoderLayer(DecoderLayer):
    has_bias = False
    attention_class = RotarySelfAttention
    feedforward_class = GatedFeedForward

    @staticmethod
    def build_mechanism(config: DecoderConfig, network: NetworkConfig) -> Mechanism:
        mechanism = DecoderLayer.build_mechanism(config, network)
        mechanism.bias_each_head()
        return mechanism


class RotaryDecoder(Decoder):
    layer_class = RotaryDecoderLayer
    is_tied = True

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        last = self.embedding.num_embeddings - 1
        return self.embedding(torch.where(tokens == last - 1, last, tokens))

    def scores(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight[:-1])
