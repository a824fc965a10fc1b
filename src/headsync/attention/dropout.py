"""Dropout that costs little on a CPU.

PyTorch draws one float for each number that may be dropped, which took a tenth of an update. Sixteen random bits each
are enough: the probability is rounded to a 65,536th part, and the scale is that of the rounded one. They come from a
fast generator of NumPy, whose seed is drawn from PyTorch's, so that who seeds PyTorch seeds dropout, and who restores
its state gets the same noise again. Elsewhere than on a CPU this is PyTorch's dropout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PARTS = 2**16
LEAST = -(2**15)  # of 16 bits with a sign


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """The numbers, each dropped with the probability, the others scaled so that the expectation stays."""
    if not training or probability == 0.0:
        return x
    return x * noise(x, probability) if x.device.type == "cpu" else F.dropout(x, probability)


def relu_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """`dropout` of a ReLU; of it all only the outcome is kept for the gradient."""
    if not training or probability == 0.0 or x.device.type != "cpu":
        return dropout(torch.relu(x), probability, training)
    return _ReluDropout.apply(x, probability)


class Dropout(nn.Module):
    """`dropout` as a layer."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.p = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def noise(like: Tensor, probability: float) -> Tensor:
    """Factors of dropout for a tensor: 0, or what scales the others."""
    dropped = _dropped(probability)
    seed = int(torch.randint(2**62, ()))
    words = np.random.Generator(np.random.SFC64(seed)).bit_generator.random_raw(-(-like.numel() // 4))
    bits = torch.from_numpy(words.view(np.int16))[: like.numel()].view(like.shape)
    first = LEAST + dropped  # the smallest number that is not dropped
    return bits.clamp_(first - 1, first).sub_(first - 1).to(like.dtype).mul_(_scale(probability))


class _ReluDropout(torch.autograd.Function):
    """What is positive in the end was neither cut off nor dropped, and nothing else has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        y = torch.relu(x).mul_(noise(x, probability))
        ctx.save_for_backward(y)
        ctx.probability = probability
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradient, y, 0).mul_(_scale(ctx.probability)), None


def _dropped(probability: float) -> int:
    """How many of all 16-bit numbers stand for a drop: at least one, and not all."""
    return min(max(round(probability * PARTS), 1), PARTS - 1)


def _scale(probability: float) -> float:
    return PARTS / (PARTS - _dropped(probability))
