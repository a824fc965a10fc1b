"""Layers of both encoder and decoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headsync.attention.dropout import relu_dropout
from headsync.config import NetworkConfig


class FeedForward(nn.Module):
    """Norm, two linear layers with a ReLU between."""

    outputs_per_input = 1  # outputs of the first layer for each input of the second

    def __init__(self, network: NetworkConfig, norm_bias: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(network.width, bias=norm_bias)
        self.first = nn.Linear(network.width, self.outputs_per_input * network.feedforward)
        self.second = nn.Linear(network.feedforward, network.width)
        self.dropout = network.dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.second(relu_dropout(self.first(self.norm(x)), self.dropout, self.training))


def positions(places: Tensor, width: int) -> Tensor:
    """Sinusoids for the given places, (..., width)."""
    rate = torch.exp(torch.arange(0, width, 2, device=places.device) * (-math.log(10_000.0) / width))
    angle = places.unsqueeze(-1) * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
