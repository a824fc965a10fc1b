"""CIF, continuous integrate-and-fire: speech is cut into tokens before the decoder asks for them.

A weight alpha for each frame, from the frame itself and the few before it, says how much of a token it is. The weights
are summed from frame to frame; whenever the sum reaches the next whole number a token is complete. The frame at which
that happens is split: what completes the token belongs to it, the rest to the next. So frame j covers the stretch of
the number line from the sum before it to the sum after it, and its weight at output step i is what lies between i and
i + 1.

At the end of the speech a residue of at least 1/2 is one more token; a smaller one is dropped, and a step for which
nothing is left, such as that of <eos>, has no context. In training alpha is scaled so that the sum is the number of
tokens, and the quantity loss draws the sum itself there.

Shapes: B rows, H heads, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.base import (
    Aligned,
    Attended,
    Mechanism,
    State,
    Window,
    at_least_single,
    decidable,
    may_look,
    reach,
    required_bias,
)
from headsync.config import DecoderConfig

KERNEL_FRAMES = 3  # frames that alpha of a frame sees: itself and those before it


class CIF(Mechanism):
    """The lowest decoder layer receives one vector for each token; those above it have no cross-attention.

    Queries are of no effect, and all heads have the same weights. State: how many steps were taken.
    """

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__(config, heads, width)
        self.convolution = nn.Linear(KERNEL_FRAMES * heads * width, width)
        self.alpha = nn.Linear(width, 1, bias=False)
        self.energy_bias = required_bias(config)

    @staticmethod
    def attends(config: DecoderConfig, layer: int) -> bool:
        return layer == 0

    def start(self, batch: int) -> State:
        return (torch.zeros(batch, dtype=torch.long, device=self.energy_bias.device),)

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        shape = q_BHLD.shape[:3]
        limit_BL = limit_BL.expand(-1, shape[2])
        alpha_BT = self._alpha(k_BHTD, limit_BL.amax(1))
        tokens_B = ((limit_BL > 0).sum(1) - 1).clamp(min=0)  # the last step is that of <eos>
        total_B = alpha_BT.sum(1)
        if self.training:
            alpha_BT = alpha_BT * (tokens_B / total_B.clamp(min=torch.finfo(total_B.dtype).tiny)).unsqueeze(1)
        weights_BLT, end_BL, _ = integrate(alpha_BT, torch.arange(shape[2], device=limit_BL.device), limit_BL)
        weights = weights_BLT.to(q_BHLD.dtype).unsqueeze(1).expand(*shape, -1)
        return Aligned(weights, end_BL.unsqueeze(1).expand(shape), (total_B - tokens_B).unsqueeze(1))

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: State, window: Window) -> Attended:
        (taken_B,) = state
        sight_B = reach(window)
        alpha_BT = self._alpha(k_BHTD, sight_B)
        weights_BLT, end_BL, complete_BL = integrate(alpha_BT, taken_B.unsqueeze(1), sight_B.unsqueeze(1))
        weights = weights_BLT.to(q_BHD.dtype).expand(-1, q_BHD.shape[1], -1)
        ready_B = complete_BL.squeeze(1) | decidable(window)
        return Attended(weights, end_BL.expand(-1, q_BHD.shape[1]), ready_B, (taken_B + 1,))

    def _alpha(self, k_BHTD: Tensor, limit_B: Tensor) -> Tensor:
        """How much of a token each frame is; nothing beyond the limit."""
        frames_BTE = k_BHTD.transpose(1, 2).flatten(2)
        seen = [F.pad(frames_BTE, (0, 0, back, 0))[:, : frames_BTE.shape[1]] for back in range(KERNEL_FRAMES)]
        energy_BT = self.alpha(self.convolution(torch.cat(seen, -1)).relu()).squeeze(-1)
        alpha_BT = torch.sigmoid(at_least_single(energy_BT) + self.energy_bias)
        return alpha_BT.masked_fill(~may_look(k_BHTD.shape[2], limit_B), 0.0)


def integrate(alpha_BT: Tensor, token_BL: Tensor, limit_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which share of each frame belongs to each token, how many frames it consumed, and whether it is complete."""
    after_BLT = alpha_BT.cumsum(-1).unsqueeze(1)
    before_BLT = F.pad(after_BLT, (1, 0))[..., :-1]
    token = token_BL.unsqueeze(-1)
    allowed = may_look(alpha_BT.shape[1], limit_BL)
    share = (after_BLT.minimum(token + 1) - before_BLT.maximum(token)).clamp(min=0).masked_fill(~allowed, 0.0)
    fires = share.sum(-1, keepdim=True) >= 0.5  # a smaller residue is no token
    end_BL = ((before_BLT < token + 1) & allowed).sum(-1)
    return share * fires, end_BL, ((after_BLT >= token + 1) & allowed).any(-1)
