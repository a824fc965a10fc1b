"""Energies of frames, and the frames before a limit; shared by all mechanisms.

Shapes: B rows, M memories, H heads, G rows of a memory, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def energies(q_BHLD: Tensor, k_BHTD: Tensor) -> Tensor:
    """Scaled dot products, eq. (4)."""
    return side_by_side(q_BHLD / math.sqrt(q_BHLD.shape[-1]), k_BHTD.transpose(-1, -2))


def side_by_side(x_BHLD: Tensor, y_MHDT: Tensor) -> Tensor:
    """Batched matrix product; in single steps, rows that share a memory are computed as one product."""
    if x_BHLD.shape[2] != 1 or 0 in y_MHDT.shape:
        return x_BHLD @ y_MHDT
    memories, heads, width, frames = y_MHDT.shape
    x_MHGD = x_BHLD.reshape(memories, -1, heads, width).transpose(1, 2)
    return (x_MHGD @ y_MHDT).transpose(1, 2).reshape(-1, heads, 1, frames)


def before_limit(frames: int, limit: Tensor) -> Tensor:
    """True where frame j lies before the limit; the frames are a new last axis."""
    return torch.arange(frames, device=limit.device) < limit.unsqueeze(-1)


def at_least_single(x: Tensor) -> Tensor:
    """Convert half precision to float32: in half precision, sums over many frames stop growing."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
