"""Accumulation: DACS (section 3) and head-synchronous DACS (section 4).

Halting probabilities are summed over frames from the first one on, and the sum stops the step. The two differ in what
is summed and in the threshold, and in nothing else: DACS sums each head by itself up to 1, HS-DACS all heads of a
layer together up to H.

The frame at which the sum passes the threshold is still attended to, with its full weight, and nothing is renormalised.
The decision where to halt carries no gradient; the weights do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, State, Window, decidable, energies, may_look, reach
from headsync.config import DecoderConfig


class DACS(nn.Module):
    """Decoder-end adaptive computation steps: every head halts by itself, eq. (4) to (7)."""

    def __init__(self, config: DecoderConfig, heads: int) -> None:
        super().__init__()
        self.threshold = config.threshold  # of each head; infinity means that no step is halted
        self.energy_bias = nn.Parameter(torch.tensor(config.energy_bias))

    def start(self, batch: int) -> State:
        return ()  # every step starts again at the first frame

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        p, total = self._halting(q_BHLD, k_BHTD, limit_BL)
        keep = self._keep(total, limit_BL)
        return Aligned(p * keep, keep.expand(p.shape).sum(-1))

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: State, window: Window) -> Attended:
        limit_BL = reach(window).unsqueeze(1)
        p, total = self._halting(q_BHD.unsqueeze(2), k_BHTD, limit_BL)
        keep = self._keep(total, limit_BL)
        halted_B = (total > self._most).any(-1).all(dim=(1, 2))
        end = keep.expand(p.shape).sum(-1)
        return Attended((p * keep).squeeze(2), end.squeeze(2), halted_B | decidable(window), state)

    def _halting(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Halting probabilities, eq. (5), zero beyond the limit; and their running sum."""
        allowed = may_look(k_BHTD.shape[2], limit_BL).unsqueeze(1)
        p = torch.sigmoid(energies(q_BHLD, k_BHTD) + self.energy_bias).masked_fill(~allowed, 0.0)
        with torch.no_grad():
            at_least_single = p.float() if p.dtype in (torch.float16, torch.bfloat16) else p
            return p, self._summed(at_least_single).cumsum(-1)

    def _keep(self, total: Tensor, limit_BL: Tensor) -> Tensor:
        """True for j <= N_i: before frame j the sum had not yet passed the threshold, eq. (6) and (9)."""
        before = F.pad(total, (1, 0))[..., :-1]
        return (before <= self._most) & may_look(total.shape[-1], limit_BL).unsqueeze(1)

    def _summed(self, p_BHLT: Tensor) -> Tensor:
        return p_BHLT

    @property
    def _most(self) -> float:
        return self.threshold


class HSDACS(DACS):
    """Head-synchronous DACS: the heads of a layer add into one accumulator and halt together, eq. (8) and (9)."""

    def __init__(self, config: DecoderConfig, heads: int) -> None:
        super().__init__(config, heads)
        self.heads = heads

    def _summed(self, p_BHLT: Tensor) -> Tensor:
        return p_BHLT.sum(1, keepdim=True)  # eq. (8)

    @property
    def _most(self) -> float:
        return self.threshold * self.heads  # the joint threshold H
