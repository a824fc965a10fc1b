"""Conversion of a decoder with softmax attention to a mechanism whose probabilities are sigmoids of energies.

Softmax weights a frame by exp(e) / Z, where Z is the sum of exp(e) over all frames. sigmoid(e - log Z) is close to this
weight if it is small. log Z depends on the query alone. It is fitted by an affine function of the query, whose slope
becomes a bias of the keys, which has no effect with softmax. The bias of the energies is chosen so that probabilities
sum to 1 over the frames of a step, as the weights of softmax do, on average over steps.

Shapes: B rows, G energies of a frame, L output steps, T encoder frames, K entries of a query per energy, N steps of all
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.attention.base import Phase
from headsync.attention.cross_attention import CrossAttention, split_heads
from headsync.attention.energies import before_limit, energies
from headsync.nn.decoder import Decoder, DecoderLayer
from headsync.nn.model import Model
from headsync.training.batches import Batch

RIDGE = 1e-3
ITERATIONS = 20  # for the constants


class _Seen(NamedTuple):
    """The inputs of the attention of a layer."""

    q_BGLK: Tensor
    k_BGTK: Tensor
    limit_BL: Tensor

    def energies(self, bias_GK: Tensor | None = None) -> Tensor:
        """Energies (B, G, L, T), -inf beyond the limit; `bias_GK` is added to the keys."""
        keys = self.k_BGTK if bias_GK is None else self.k_BGTK + bias_GK[:, None]
        allowed = before_limit(keys.shape[2], self.limit_BL).unsqueeze(1)
        return energies(self.q_BGLK, keys).masked_fill(~allowed, -torch.inf)


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
    mechanisms = [layer.cross.mechanism for layer in decoder.attending]
    return all(one.energies_of_frame and one.energy_bias is not None for one in mechanisms)


@torch.no_grad()
def fit_energies(model: Model, batches: Sequence[Batch]) -> list[float]:
    """Set the biases of keys and energies; returns the share of the variance of log Z explained in each layer.

    The decoder has the weights of one with softmax attention. Layers are fitted from the lowest to the highest, each
    with the outputs of the fitted layers below it.
    """
    decoder, inputs, explained = model.decoder, [], []
    decoder.set_phase(Phase(halts=False))
    for batch in batches:
        frames_BTE, frames_B = model.encode(batch.features_BTF, batch.lengths_B)
        limit_BL = model.limits(batch.tokens_BL, frames_B)
        inputs.append((*decoder.inputs(batch.tokens_BL, frames_BTE, limit_BL), limit_BL))
    for layer in decoder.layers:
        if layer.attends:
            explained.append(_fit(layer.cross, [_attended(layer, *one) for one in inputs]))
        inputs = [(layer.whole(x, frames, limit)[0], frames, limit) for x, frames, limit in inputs]
    return explained


def _attended(layer: DecoderLayer, x_BLE: Tensor, frames_BTE: Tensor, limit_BL: Tensor) -> _Seen:
    """What the attention of a layer receives, for the energies of its mechanism."""
    count, cross = layer.cross.mechanism.energies_of_frame, layer.cross
    x_BLE = x_BLE + layer.self_attention.whole(layer.norm_self(x_BLE))
    q_BLE, k_BTE = cross.query(layer.norm_cross(x_BLE)), cross.key(frames_BTE)
    return _Seen(split_heads(q_BLE, count), split_heads(k_BTE, count), limit_BL)


def _fit(cross: CrossAttention, inputs: Sequence[_Seen]) -> float:
    total = _sums(inputs[0])
    for one in inputs[1:]:
        total = total + _sums(one)
    slope_GK, explained = _solve(total)
    shift_GK = slope_GK[:, :-1] * slope_GK[:, :-1].shape[1] ** 0.5
    constant_G = _constant(inputs, shift_GK, slope_GK[:, -1])
    cross.key.bias.sub_(shift_GK.flatten().to(cross.key.bias.dtype))
    bias = cross.mechanism.energy_bias
    assert bias is not None
    bias.copy_(-(constant_G[:, None, None] if bias.dim() else constant_G.mean()))
    return explained


def _sums(seen: _Seen) -> Sums:
    exists_BL = seen.limit_BL > 0
    y_GN = seen.energies().logsumexp(-1).transpose(0, 1)[:, exists_BL].double()
    x_GNK = F.pad(seen.q_BGLK, (0, 1), value=1.0).transpose(0, 1)[:, exists_BL].double()
    return Sums(x_GNK.mT @ x_GNK, (x_GNK * y_GN[..., None]).sum(1), y_GN.square().sum(1), y_GN.sum(1))


def _solve(total: Sums) -> tuple[Tensor, float]:
    """Least squares for log Z, (G, K + 1), and the share of its variance explained."""
    count, size = total.xx_GKK[0, -1, -1], total.xx_GKK.shape[-1]
    ridge = RIDGE * count * torch.eye(size, dtype=torch.float64, device=count.device)
    ridge[-1, -1] = 0.0
    solution_GK = torch.linalg.solve(total.xx_GKK + ridge, total.xy_GK)
    fitted_GK = (total.xx_GKK @ solution_GK[..., None]).squeeze(-1)
    residual = total.yy_G - 2 * (solution_GK * total.xy_GK).sum(-1) + (solution_GK * fitted_GK).sum(-1)
    spread = total.yy_G - total.y_G.square() / count
    return solution_GK, float(1 - residual.sum() / spread.sum())


def _constant(inputs: Sequence[_Seen], shift_GK: Tensor, constant_G: Tensor) -> Tensor:
    """The constant with which probabilities sum to 1 over the frames of a step, on average over steps.

    The constant of least squares makes large sums: where log Z is larger than fitted, most probabilities are near 1.
    """
    exist = [one.limit_BL > 0 for one in inputs]
    energies = [one.energies(-shift_GK.to(one.k_BGTK.dtype)) for one in inputs]
    for _ in range(ITERATIONS):
        sums_GN = torch.cat(
            [
                (energy - constant_G[:, None, None].to(energy.dtype)).sigmoid().sum(-1).transpose(0, 1)[:, exists_BL]
                for energy, exists_BL in zip(energies, exist, strict=True)
            ],
            1,
        )
        constant_G = constant_G + sums_GN.mean(1).double().log()
    return constant_G
