"""Networks with all weights random, so that no initial value hides a weight."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def scrambled(module: M, seed: int = 0) -> M:
    """The module in float64, ready to recognise, its weights drawn from the seed; single numbers keep their value."""
    source = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            if parameter.dim() == 0:
                continue
            inputs = parameter[0].numel() if parameter.dim() > 1 else 4
            noise = torch.randn(parameter.shape, generator=source, dtype=torch.float64) / inputs**0.5
            start = 1.0 if isinstance(part, nn.LayerNorm) and parameter is part.weight else 0.0
            parameter.data.copy_(start + noise)
    return module
