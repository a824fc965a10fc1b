"""Conversion of a decoder with softmax attention to a mechanism whose probabilities are sigmoids of energies.

Softmax weights a frame by exp(e) / Z, where Z is the sum of exp(e) over all frames. sigmoid(e - log Z) is close to this
weight if it is small. log Z depends on the query alone. It is fitted by an affine function of the query, whose slope
becomes a bias of the keys, which has no effect with softmax, and whose constant becomes the bias of the energies.

Shapes: B rows, G energies of a frame, H heads, L output steps, T encoder frames, K entries of a query per energy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.attention.base import Aligned, Mechanism, before_limit, energies
from headsync.attention.cross_attention import CrossAttention, split_heads
from headsync.nn.decoder import Decoder
from headsync.nn.model import Model
from headsync.training.batches import Batch

RIDGE = 1e-3


class _Seen(NamedTuple):
    """The inputs of the softmax attention of a layer."""

    q_BHLD: Tensor
    k_BHTD: Tensor
    limit_BL: Tensor


class Sums(NamedTuple):
    """Sums of the normal equations over output steps; x is a query with 1 appended, y is log Z."""

    xx_GKK: Tensor
    xy_GK: Tensor
    yy_G: Tensor
    y_G: Tensor

    def __add__(self, other: object) -> Sums:
        assert isinstance(other, Sums)
        return Sums(*(one + more for one, more in zip(self, other, strict=True)))


def has_energies(decoder: Decoder) -> bool:
    """Whether the attention of a decoder can be fitted: its energies have biases."""
    mechanisms = [_mechanism(layer.cross) for layer in decoder.attending]
    return all(one.energies_of_frame and one.energy_bias is not None for one in mechanisms)


@torch.no_grad()
def fit_energies(model: Model, softmax: Decoder, batches: Sequence[Batch]) -> list[float]:
    """Set the biases of keys and energies; returns the share of the variance of log Z explained in each layer.

    The queries and keys of `model` are those of `softmax`, whose layers are computed with softmax weights.
    """
    layers = zip(model.decoder.layers, softmax.layers, strict=True)
    crosses = [(ours.cross, theirs.cross) for ours, theirs in layers if ours.attends]
    sums: list[Sums | None] = [None for _ in crosses]
    for batch in batches:
        frames_BTE, frames_B = model.encode(batch.features_BTF, batch.lengths_B)
        seen = _attended(softmax, batch.tokens_BL, frames_BTE, model.limits(batch.tokens_BL, frames_B))
        for n, (ours, theirs) in enumerate(crosses):
            new, before = _sums(seen[theirs], _mechanism(ours).energies_of_frame), sums[n]
            sums[n] = new if before is None else before + new
    return [_set_biases(ours, total) for (ours, _), total in zip(crosses, sums, strict=True) if total is not None]


def _attended(softmax: Decoder, tokens_BL: Tensor, frames_BTE: Tensor, limit_BL: Tensor) -> dict[CrossAttention, _Seen]:
    """What the attention of each layer receives."""
    seen: dict[CrossAttention, _Seen] = {}
    originals = [(layer.cross, layer.cross.mechanism.align) for layer in softmax.attending]
    for cross, align in originals:
        cross.mechanism.align = partial(_record, align, seen, cross)  # type: ignore[method-assign]
    softmax.layer_outputs(tokens_BL, frames_BTE, limit_BL)
    for cross, align in originals:
        cross.mechanism.align = align  # type: ignore[method-assign]
    return seen


def _record(align: Any, seen: dict[CrossAttention, _Seen], cross: CrossAttention, *inputs: Tensor) -> Aligned:
    seen[cross] = _Seen(*inputs)
    aligned: Aligned = align(*inputs)
    return aligned


def _sums(seen: _Seen, count: int) -> Sums:
    """The sums of one batch for `count` energies of a frame."""
    q_BGLK, k_BGTK = (split_heads(x.transpose(1, 2).flatten(2), count) for x in (seen.q_BHLD, seen.k_BHTD))
    allowed_BGLT = before_limit(k_BGTK.shape[2], seen.limit_BL).unsqueeze(1)
    energy = energies(q_BGLK, k_BGTK).masked_fill(~allowed_BGLT, -torch.inf)
    exists_BL = seen.limit_BL > 0
    y_GN = energy.logsumexp(-1).transpose(0, 1)[:, exists_BL].double()
    x_GNK = F.pad(q_BGLK, (0, 1), value=1.0).transpose(0, 1)[:, exists_BL].double()
    return Sums(x_GNK.mT @ x_GNK, (x_GNK * y_GN[..., None]).sum(1), y_GN.square().sum(1), y_GN.sum(1))


def _set_biases(cross: CrossAttention, total: Sums) -> float:
    """Least squares for log Z."""
    mechanism, size = _mechanism(cross), total.xx_GKK.shape[-1]
    assert mechanism.energy_bias is not None
    count = total.xx_GKK[0, -1, -1]
    ridge = RIDGE * count * torch.eye(size, dtype=torch.float64, device=count.device)
    ridge[-1, -1] = 0.0
    solution_GK = torch.linalg.solve(total.xx_GKK + ridge, total.xy_GK)
    cross.key.bias -= (solution_GK[:, :-1] * (size - 1) ** 0.5).flatten().to(cross.key.bias.dtype)
    constant = solution_GK[:, -1, None, None]
    mechanism.energy_bias.copy_(-(constant if mechanism.energy_bias.dim() else constant.mean()))
    fitted = (total.xx_GKK @ solution_GK[..., None]).squeeze(-1)
    residual = total.yy_G - 2 * (solution_GK * total.xy_GK).sum(-1) + (solution_GK * fitted).sum(-1)
    spread = total.yy_G - total.y_G.square() / count
    return float(1 - residual.sum() / spread.sum())


def _mechanism(cross: CrossAttention) -> Mechanism:
    assert isinstance(cross.mechanism, Mechanism)
    return cross.mechanism
