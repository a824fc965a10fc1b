"""Softmax attention, eq. (1). It requires all frames before its limit, because it is normalised over them.

Without a limit this is the offline Transformer, whose steps are decided at the end of the utterance. The two streaming
variants differ only in the limits that the search sets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headsync.attention.base import Aligned, Attended, AttentionWindow, Mechanism, MechanismState
from headsync.attention.energies import before_limit, energies


class Softmax(Mechanism):
    """softmax(q k^T / sqrt(d_k)) over the frames before the limit."""

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        allowed = before_limit(k_BHTD.shape[2], limit_BL).unsqueeze(1)
        energy = energies(q_BHLD, k_BHTD).masked_fill(~allowed, torch.finfo(q_BHLD.dtype).min)
        weights = energy.softmax(-1).masked_fill(~allowed, 0.0)  # a row without frames has no weights
        return Aligned(weights, allowed.sum(-1).expand(weights.shape[:3]))

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: MechanismState, window: AttentionWindow) -> Attended:
        aligned = self.align(q_BHD.unsqueeze(2), k_BHTD, window.end.unsqueeze(1))
        return Attended(aligned.weights_BHLT.squeeze(2), aligned.end_BHL.squeeze(2), window.complete, state)


class Triggered(Softmax):
    """Triggered attention: step i attends up to the frame at which CTC emits token i, plus a few frames.

    In training the limits come from a forced alignment, in the search from CTC spikes.
    """


class BlockSynchronous(Softmax):
    """BS-DEC: softmax over all frames so far; the search detects when a block is exhausted."""
