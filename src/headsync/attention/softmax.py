"""Softmax attention, eq. (1): it must see all that its limit allows before it can be normalised.

With no limit this is the offline Transformer: a step is decided only when the speech has ended.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, State, Window, decidable, energies, may_look, reach
from headsync.config import DecoderConfig


class Softmax(nn.Module):
    """softmax(q k^T / sqrt(d_k)) over the frames before the limit."""

    def __init__(self, config: DecoderConfig, heads: int) -> None:
        super().__init__()
        self.threshold = config.threshold  # of no effect: nothing is accumulated

    def start(self, batch: int) -> State:
        return ()  # every step starts again at the first frame

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        allowed = may_look(k_BHTD.shape[2], limit_BL).unsqueeze(1)
        energy = energies(q_BHLD, k_BHTD).masked_fill(~allowed, torch.finfo(q_BHLD.dtype).min)
        weights = energy.softmax(-1).masked_fill(~allowed, 0.0)  # a row that may see nothing has no weights
        return Aligned(weights, allowed.sum(-1).expand(weights.shape[:3]))

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: State, window: Window) -> Attended:
        weights, end = self.align(q_BHD.unsqueeze(2), k_BHTD, reach(window).unsqueeze(1))
        return Attended(weights.squeeze(2), end.squeeze(2), decidable(window), state)
