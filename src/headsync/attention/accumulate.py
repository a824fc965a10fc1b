"""Accumulation: ACS, DACS (section 3) and head-synchronous DACS (section 4).

Halting probabilities are summed over the frames, and the step halts when the sum exceeds a threshold. ACS has one
probability per layer and the threshold 1, DACS has a sum for each head and the threshold 1, and HS-DACS has one sum
over all heads of a layer and the threshold H.

The frame at which the sum exceeds the threshold keeps its full weight. The weights of a step are its probabilities, as
in the paper, or the probabilities divided by their sum (`decoder.normalised`), as in softmax attention. The halting
decision has no gradient; the weights have one.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, AttentionWindow, Mechanism, MechanismState
from headsync.attention.energies import at_least_single, before_limit, energies
from headsync.config import DecoderConfig

LEAST_SUM = 1e-6  # so that a step without any probability has weights of 0


class DACS(Mechanism):
    """Decoder-end adaptive computation steps: every head halts separately, eq. (4) to (7)."""

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__(config, heads, width)
        self.heads = heads
        self.energy_bias = None if config.energy_bias is None else nn.Parameter(torch.tensor(config.energy_bias))
        self.reach, self._reach_sum = config.reach, config.threshold
        self._is_normalised = config.normalised

    @property
    def energies_of_frame(self) -> int:
        return self.heads

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        allowed = before_limit(k_BHTD.shape[2], limit_BL).unsqueeze(1)
        p, total = self._halting(q_BHLD, k_BHTD, allowed)
        keep = self._keep(total, allowed, self._most(self.threshold))
        shape = q_BHLD.shape[:3]
        weights = self._weights(p * keep).expand(*shape, -1)
        return Aligned(weights, keep.sum(-1).expand(shape), shortfall_BM=self._shortfall(p, limit_BL))

    def _shortfall(self, p: Tensor, limit_BL: Tensor) -> Tensor | None:
        """By how much the halting sums fall short of `reach` thresholds, summed over the steps of a row.

        The paper has no such loss, and nothing else trains a step to halt. With short tokens and long texts, the
        network learns small probabilities to avoid early halts, until no step halts.
        """
        if not self.reach:
            return None
        total = self._summed(at_least_single(p)).sum(-1) / self._reach_sum
        missing_BML = F.relu(self.reach - total) * (limit_BL > 0).unsqueeze(1)
        return missing_BML.sum(-1)

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: MechanismState, window: AttentionWindow) -> Attended:
        allowed = before_limit(k_BHTD.shape[2], window.end.unsqueeze(1)).unsqueeze(1)
        p, total = self._halting(q_BHD.unsqueeze(2), k_BHTD, allowed)
        most = self._most(self.threshold if window.threshold_B is None else window.threshold_B[:, None, None, None])
        keep = self._keep(total, allowed, most)
        halted_B = (total[..., -1:] > most).flatten(1).all(1)  # sums only grow
        heads = q_BHD.shape[1]
        weights, end = (self._weights(p * keep)[:, :, 0], keep.sum(-1)[:, :, 0])
        if p.shape[1] != heads:
            weights = weights.expand(-1, heads, -1)
        return Attended(weights, end.expand(-1, heads), halted_B | window.complete, state)

    def _halting(self, q_BHLD: Tensor, k_BHTD: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """Halting probabilities, eq. (5), zero beyond the limit, and their running sum, which starts with 0."""
        energy = self._energies(q_BHLD, k_BHTD)
        p = torch.sigmoid(energy if self.energy_bias is None else energy + self.energy_bias).masked_fill(~allowed, 0.0)
        with torch.no_grad():
            return p, F.pad(self._summed(at_least_single(p)).cumsum(-1), (1, 0))

    def _keep(self, total: Tensor, allowed: Tensor, most: float | Tensor) -> Tensor:
        """True for j <= N_i: the sum over the frames before j is within the threshold, eq. (6) and (9)."""
        return (total[..., :-1] <= most) & allowed

    def _weights(self, p: Tensor) -> Tensor:
        return p / p.sum(-1, keepdim=True).clamp(min=LEAST_SUM) if self._is_normalised else p

    def _energies(self, q_BHLD: Tensor, k_BHTD: Tensor) -> Tensor:
        return energies(q_BHLD, k_BHTD)

    def _summed(self, p_BHLT: Tensor) -> Tensor:
        return p_BHLT

    def _most(self, threshold: float | Tensor) -> float | Tensor:
        return threshold if self.phase.halts else math.inf


class HSDACS(DACS):
    """Head-synchronous DACS: the heads of a layer add into one accumulator and halt together, eq. (8) and (9)."""

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__(config, heads, width)
        self._reach_sum = config.threshold * heads

    def _summed(self, p_BHLT: Tensor) -> Tensor:
        return p_BHLT.sum(1, keepdim=True)  # eq. (8)

    def _most(self, threshold: float | Tensor) -> float | Tensor:
        return threshold * self.heads if self.phase.halts else math.inf  # the joint threshold H


class ACS(DACS):
    """The predecessor of DACS: one halting probability per frame for all heads, of the full width of q and k."""

    @property
    def energies_of_frame(self) -> int:
        return 1

    def _energies(self, q_BHLD: Tensor, k_BHTD: Tensor) -> Tensor:
        return energies(*(x.transpose(1, 2).flatten(2).unsqueeze(1) for x in (q_BHLD, k_BHTD)))
