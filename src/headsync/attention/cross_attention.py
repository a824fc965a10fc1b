"""Cross-attention, eq. (2) and (3): the projections and the weighted sum, around any mechanism.

Keys and values of encoder frames are projected once (`project`) and shared by all output steps and hypotheses.

Shapes: B rows, H heads, L output steps, T encoder frames, D head width, E = H * D.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, AttentionWindow, Mechanism, MechanismState
from headsync.attention.dropout import dropout
from headsync.attention.energies import side_by_side


def split_heads(x_BTE: Tensor, heads: int) -> Tensor:
    """(B, T, E) -> (B, H, T, D)."""
    return x_BTE.unflatten(-1, (heads, -1)).transpose(1, 2)


class CrossAttention(nn.Module):
    """Multi-head attention of decoder states over encoder frames by any online mechanism."""

    def __init__(self, width: int, heads: int, mechanism: Mechanism, dropout: float, bias: bool = True) -> None:
        """`bias`: of queries, values and output; keys always have one, which has no effect only with softmax."""
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width, bias)
        self.out = nn.Linear(width, width, bias)
        self.mechanism = mechanism

    def project(self, frames_BTE: Tensor, bias: bool = True) -> tuple[Tensor, Tensor]:
        """Keys and values of encoder frames, (B, H, T, D) each; `bias=False` for frames that are added to others."""
        keys, values = (F.linear(frames_BTE, p.weight, p.bias if bias else None) for p in (self.key, self.value))
        return split_heads(keys, self.heads), split_heads(values, self.heads)

    def whole(self, x_BLE: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, limit_BL: Tensor) -> tuple[Tensor, Aligned]:
        """All output steps in parallel, for training. Dropout applies to the final weights, not to halting sums."""
        aligned = self.mechanism.align(split_heads(self.query(x_BLE), self.heads), k_BHTD, limit_BL)
        weights = dropout(aligned.weights_BHLT, self.dropout, self.training)
        context = (weights @ v_BHTD).transpose(1, 2).flatten(2)  # eq. (7)
        return self.out(context), aligned

    def step(
        self, x_BE: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, state: MechanismState, window: AttentionWindow
    ) -> tuple[Tensor, Attended]:
        """One output step on the frames available so far."""
        q_BHD = self.query(x_BE).reshape(-1, self.heads, self.query.out_features // self.heads)
        attended = self.mechanism.step(q_BHD, k_BHTD, state, window)
        context = side_by_side(attended.weights_BHT.unsqueeze(2), v_BHTD).flatten(1)
        return self.out(context), attended
