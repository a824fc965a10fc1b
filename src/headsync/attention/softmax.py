"""Softmax attention, eq. (1): it must see all that its limit allows before it can be normalised.

With no limit this is the offline Transformer: a step is decided only when the speech has ended. Two ways to stream it
leave the attention as it is and are matters of the search, which gives other limits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headsync.attention.base import Aligned, Attended, Mechanism, State, Window, decidable, energies, may_look, reach


class Softmax(Mechanism):
    """softmax(q k^T / sqrt(d_k)) over the frames before the limit."""

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        allowed = may_look(k_BHTD.shape[2], limit_BL).unsqueeze(1)
        energy = energies(q_BHLD, k_BHTD).masked_fill(~allowed, torch.finfo(q_BHLD.dtype).min)
        weights = energy.softmax(-1).masked_fill(~allowed, 0.0)  # a row that may see nothing has no weights
        return Aligned(weights, allowed.sum(-1).expand(weights.shape[:3]))

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: State, window: Window) -> Attended:
        aligned = self.align(q_BHD.unsqueeze(2), k_BHTD, reach(window).unsqueeze(1))
        return Attended(aligned.weights_BHLT.squeeze(2), aligned.end_BHL.squeeze(2), decidable(window), state)


class Triggered(Softmax):
    """Triggered attention: step i looks as far as the frame at which CTC emits token i, and a few frames further.

    In training the limits come from a forced alignment, in the search from the CTC spikes.
    """


class BlockSynchronous(Softmax):
    """BS-DEC: softmax over all frames so far; the search decides when a block of them is exhausted."""
