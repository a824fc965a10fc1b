"""The front end: two 3x3 CNN layers of stride 2 (section 5.1), so that an encoder frame is four feature frames, 40 ms.

There is no padding in time, so output k depends on feature frames 4k to 4k+6 alone. The front end can therefore run on
any chunks of the stream that overlap by three frames, and needs no state.

Shapes: B rows, T feature frames, F features, N encoder frames, E width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headsync.frontend.frame_rate import LOG_MEL


class ConvFront(nn.Module):
    """(B, T, F) feature frames -> (B, N, E) embedded encoder frames."""

    def __init__(self, features: int, kernels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, kernels, 3, 2)
        self.second = nn.Conv2d(kernels, kernels, 3, 2)
        self.out = nn.Linear(kernels * LOG_MEL.embedded(features), width)
        for layer in (self.first, self.second):  # preserve the variance through the ReLUs
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        self.scale = math.sqrt(width)  # as in Transformers: the input initially outweighs the residual branches

    def forward(self, features_BTF: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(features_BTF.unsqueeze(1)))))
        return self.out(x.transpose(1, 2).flatten(2)) * self.scale
