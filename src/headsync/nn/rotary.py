"""Rotary positions and feed-forward layers of the moonshine encoder and decoder.

Pairs of entries of a query or key are rotated by angles proportional to the position, so that products of queries and
keys depend on distances alone. Entry n of the first half of the rotated entries is paired with entry n of the
second half. Angles are computed in double precision: a stream may run for days.

Shapes: R rotated entries of a head, D head width, E width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.dropout import dropout
from headsync.config import NetworkConfig
from headsync.nn.layers import FeedForward

MOST_ROTATED = 32  # entries of a head; the others do not depend on positions
SLOWEST = 10_000.0


class Turns(NamedTuple):
    """Cosine and sine of the angles of some positions, (..., R / 2) each."""

    cos: Tensor
    sin: Tensor

    def over_heads(self) -> Turns:
        """The same with an axis of heads before the entries."""
        return Turns(self.cos.unsqueeze(-2), self.sin.unsqueeze(-2))


def rotated_entries(head_width: int) -> int:
    return min(MOST_ROTATED, head_width)


def turns(places: Tensor, head_width: int, dtype: torch.dtype) -> Turns:
    """Cosine and sine of the angles of positions."""
    size = rotated_entries(head_width)
    rates = torch.exp(torch.arange(0, size, 2, device=places.device).double() * (-math.log(SLOWEST) / size))
    angles = torch.remainder(places.double().unsqueeze(-1) * rates, 2 * math.pi).to(dtype)
    return Turns(angles.cos(), angles.sin())


def rotate(x: Tensor, by: Turns) -> Tensor:
    """Queries or keys (..., D), rotated by the angles of their positions."""
    half = by.cos.shape[-1]
    one, other, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([one * by.cos - other * by.sin, other * by.cos + one * by.sin, rest], -1)


class GeluFeedForward(FeedForward):
    """Norm, two linear layers with a GELU between."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(dropout(F.gelu(self.first(self.norm(x))), self.dropout, self.training))


class GatedFeedForward(FeedForward):
    """Norm, two linear layers; one half of the output of the first gates the other half."""

    outputs_per_input = 2

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.first(self.norm(x)).chunk(2, -1)
        return self.second(dropout(F.silu(gate) * y, self.dropout, self.training))


class CtcHead(nn.Module):
    """A feed-forward block with a residual connection, a norm and the output layer of CTC: the decoder's embedding.

    The last row of the embedding is an input only.
    """

    def __init__(self, network: NetworkConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.feedforward = GeluFeedForward(network)
        self.norm = nn.LayerNorm(network.width)
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings - 1))
        self._embedding = (embedding,)  # in a tuple it is no submodule: the decoder stores its weights

    def forward(self, frames_BTE: Tensor) -> Tensor:
        x_BTE = self.norm(frames_BTE + self.feedforward(frames_BTE))
        return F.linear(x_BTE, self._embedding[0].weight)[..., :-1] + self.bias
