"""Fast dropout on CPUs; on other devices this is PyTorch's dropout.

PyTorch draws a float for each element, which takes a tenth of an update. Here 16 random bits decide each element: the
probability is rounded to a multiple of 1/65,536, and the scale follows from the rounded probability. The bits come from
a NumPy generator whose seed is drawn from PyTorch's generator, so that seeding PyTorch, or restoring its state,
reproduces them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_VALUES = 2**16
_LOWEST = -(2**15)  # int16


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Drop each element with this probability, and scale the others to keep the expectation."""
    if not training or probability == 0.0:
        return x
    return x * noise(x, probability) if x.device.type == "cpu" else F.dropout(x, probability)


def relu_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """`dropout` of a ReLU; only its output is stored for the gradient."""
    if not training or probability == 0.0 or x.device.type != "cpu":
        return dropout(torch.relu(x), probability, training)
    return _ReluDropout.apply(x, probability)


class Dropout(nn.Module):
    def __init__(self, probability: float) -> None:
        super().__init__()
        self.p = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def noise(like: Tensor, probability: float) -> Tensor:
    """The dropout factors of a tensor: 0 for dropped elements, the scale for others."""
    dropped = _dropped(probability)
    seed = int(torch.randint(2**62, ()))
    words = np.random.Generator(np.random.SFC64(seed)).bit_generator.random_raw(-(-like.numel() // 4))
    bits = torch.from_numpy(words.view(np.int16))[: like.numel()].view(like.shape)
    first = _LOWEST + dropped  # the smallest value that is not dropped
    return bits.clamp_(first - 1, first).sub_(first - 1).to(like.dtype).mul_(_scale(probability))


class _ReluDropout(torch.autograd.Function):
    """Only positive outputs have a gradient: they were neither cut off nor dropped."""

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
    """The number of 16-bit values that mean "drop": at least one, and not all."""
    return min(max(round(probability * _VALUES), 1), _VALUES - 1)


def _scale(probability: float) -> float:
    return _VALUES / (_VALUES - _dropped(probability))
