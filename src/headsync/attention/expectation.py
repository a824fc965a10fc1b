"""The expectations of Bernoulli attention: the boundaries, and the chunks that end at them.

Boundaries. Mass enters output step 0 at frame 0. At each frame a share p of the mass of a step stops and enters the
next step at the same frame; the rest moves to the next frame:

    q_{i,j} = q_{i,j-1} (1 - p_{i,j-1}) + alpha_{i-1,j},    alpha_{i,j} = p_{i,j} q_{i,j}

Each q depends on two neighbours whose i + j is smaller by one. All steps are therefore computed together, diagonal by
diagonal, in L + T - 1 small updates. They only move mass, so nothing overflows and nothing is clamped. (The form that
computes a whole step at once divides by the product of all 1 - p and fails where it vanishes.)

Chunks. Frame j contributes to every chunk that contains it, that is, to those that end at k = j .. j + w - 1:

    beta_{i,j} = sum_k alpha_{i,k} s_{i,k,j},    s_{i,k,j} = exp(u_{i,j}) / sum_{l = k-w+1 .. k} exp(u_{i,l})

Both functions define their own derivatives, which run through the same recursion backwards.

Shapes: B rows, H heads, L output steps, T encoder frames, S = L + T - 1 diagonals, N = B * H, W frames of a chunk.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_Frames = tuple[EllipsisType, slice]  # an index of the frame axis
_ChunkShares = tuple[_Frames, _Frames, Tensor]  # frames, the boundaries of their chunks, the shares of the frames

_SMALLEST = 1e-30  # smaller masses are set to 0, because CPUs are slow with subnormal numbers


def expected_boundaries(p_BHLT: Tensor) -> Tensor:
    """alpha_{i,j}: the probability that step i stops at frame j; p is the probability to stop at a frame it reaches."""
    return _Boundaries.apply(p_BHLT)


class _Boundaries(torch.autograd.Function):
    """The recursion over diagonals, and its derivative."""

    @staticmethod
    def forward(ctx: Any, p_BHLT: Tensor) -> Tensor:
        p = _diagonals(p_BHLT)
        q = torch.empty_like(p)
        q[0] = 0.0
        q[0, 0] = 1.0
        rows, entering = q.unbind(), q[:, 1:].unbind()
        stopping = zip(p[:, :-1].unbind(), q[:, :-1].unbind(), strict=True)
        for here, p_here, stops, after, enter in zip(rows, p.unbind(), stopping, rows[1:], entering[1:], strict=False):
            torch.addcmul(here, p_here, here, value=-1, out=after)  # the rest moves to the next frame
            enter.addcmul_(*stops)  # the stopped mass enters the next step
            F.threshold(after, _SMALLEST, 0.0, inplace=True)
        ctx.save_for_backward(p, q)
        return _whole(p * q, p_BHLT.shape)

    @staticmethod
    def backward(ctx: Any, gradient_BHLT: Tensor) -> Tensor:
        p, q = ctx.saved_tensors
        g_alpha = _diagonals(gradient_BHLT)
        g_q = torch.zeros_like(p[0])
        g_next = g_q[1:]
        diagonals = zip(p.unbind(), g_alpha.unbind(), g_alpha[:, :-1].unbind(), strict=True)
        for p_here, g_here, g_stops in reversed(list(diagonals)):
            g_here -= g_q
            g_stops += g_next
            g_q.addcmul_(p_here, g_here)
        return _whole(q * g_alpha, gradient_BHLT.shape)


def expected_chunks(alpha_BHLT: Tensor, u_BHLT: Tensor, width: int) -> Tensor:
    """beta_{i,j}: the expected weight of frame j in a softmax over the `width` frames that end at the boundary."""
    return _Chunks.apply(alpha_BHLT, u_BHLT, width)


class _Chunks(torch.autograd.Function):
    """The weighted sum of all chunks; the derivative recomputes their shares to save memory."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, u: Tensor, width: int) -> Tensor:
        beta = _spread(alpha, _shares(u, width))
        ctx.save_for_backward(alpha, u, beta)
        ctx.width = width
        return beta

    @staticmethod
    def backward(ctx: Any, g_beta: Tensor) -> tuple[Tensor, Tensor, None]:
        alpha, u, beta = ctx.saved_tensors
        shares = _shares(u, ctx.width)
        g_alpha = torch.zeros_like(g_beta)
        for frame, boundary, s in shares:
            g_alpha[boundary].addcmul_(s, g_beta[frame])
        g_u = beta * g_beta - _spread(alpha * g_alpha, shares)
        return g_alpha, g_u, None


def _spread(mass: Tensor, shares: list[_ChunkShares]) -> Tensor:
    """Distribute the mass at each boundary over the frames of its chunk."""
    spread = torch.zeros_like(mass)
    for frame, boundary, s in shares:
        spread[frame].addcmul_(s, mass[boundary])
    return spread


def _shares(u: Tensor, width: int) -> list[_ChunkShares]:
    """For each distance from frame to boundary: all pairs at that distance, and s, the softmax over each chunk."""
    frames = u.shape[-1]
    pairs = [((..., slice(0, frames - c)), (..., slice(c, frames))) for c in range(min(width, frames))]
    largest = u.clone()
    for frame, boundary in pairs:
        torch.maximum(largest[boundary], u[frame], out=largest[boundary])
    shares = [(frame, boundary, (u[frame] - largest[boundary]).exp_()) for frame, boundary in pairs]
    total = torch.zeros_like(u)
    for _, boundary, s in shares:
        total[boundary] += s
    for _, boundary, s in shares:
        s /= total[boundary]
    return shares


def _diagonals(x_BHLT: Tensor) -> Tensor:
    """(B, H, L, T) -> (S, L, N): frame s - i of step i at [s, i], 0 outside."""
    steps, frames = x_BHLT.shape[2:]
    slanted = F.pad(x_BHLT.flatten(0, 1), (0, steps)).flatten(1)[:, :-steps]  # row i is moved right by i
    return slanted.view(-1, steps, frames + steps - 1).permute(2, 1, 0).contiguous()


def _whole(x_SLN: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `_diagonals`."""
    steps, frames = shape[2:]
    slanted = F.pad(x_SLN.permute(2, 1, 0).flatten(1), (0, steps))
    return slanted.view(-1, steps, frames + steps)[:, :, :frames].reshape(shape)
