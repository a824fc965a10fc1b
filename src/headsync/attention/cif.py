"""CIF, continuous integrate-and-fire: frames are segmented into tokens independently of the decoder.

Each frame has a weight alpha, its share of a token, computed from the frame and a few frames before it. The weights are
summed over the frames; a token is complete whenever the sum reaches the next integer. The frame at which that happens
is split between this token and the next. Frame j covers the interval from the sum before it to the sum after it, and
its weight at output step i is the part of this interval between i and i + 1.

At the end of the speech a remainder of at least 1/2 is one more token, and a smaller one is dropped. A step without
frames, such as that of <eos>, has no context. In training alpha is scaled so that the sum is the number of tokens, and
the quantity loss pulls the unscaled sum towards it.

Shapes: B rows, H heads, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, AttentionWindow, Mechanism, MechanismState, required_bias
from headsync.attention.energies import at_least_single, before_limit
from headsync.config import DecoderConfig

KERNEL_FRAMES = 3  # frames from which alpha is computed: the frame itself and those before it


class CIF(Mechanism):
    """The lowest decoder layer receives one vector per token; the other layers have no cross-attention.

    Queries have no effect, and all heads have the same weights. State: the number of the next step.
    """

    energy_bias: nn.Parameter

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__(config, heads, width)
        self.convolution = nn.Linear(KERNEL_FRAMES * heads * width, width)
        self.alpha = nn.Linear(width, 1, bias=False)
        self.energy_bias = required_bias(config)

    @staticmethod
    def attends(config: DecoderConfig, layer: int) -> bool:
        return layer == 0

    def start(self, batch: int) -> MechanismState:
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

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: MechanismState, window: AttentionWindow) -> Attended:
        (taken_B,) = state
        sight_B = window.end
        alpha_BT = self._alpha(k_BHTD, sight_B)
        weights_BLT, end_BL, complete_BL = integrate(alpha_BT, taken_B.unsqueeze(1), sight_B.unsqueeze(1))
        weights = weights_BLT.to(q_BHD.dtype).expand(-1, q_BHD.shape[1], -1)
        ready_B = complete_BL.squeeze(1) | window.complete
        return Attended(weights, end_BL.expand(-1, q_BHD.shape[1]), ready_B, (taken_B + 1,))

    def _alpha(self, k_BHTD: Tensor, limit_B: Tensor) -> Tensor:
        """The share of a token in each frame; 0 beyond the limit."""
        frames_BTE = k_BHTD.transpose(1, 2).flatten(2)
        seen = [F.pad(frames_BTE, (0, 0, back, 0))[:, : frames_BTE.shape[1]] for back in range(KERNEL_FRAMES)]
        energy_BT = self.alpha(self.convolution(torch.cat(seen, -1)).relu()).squeeze(-1)
        alpha_BT = torch.sigmoid(at_least_single(energy_BT) + self.energy_bias)
        return alpha_BT.masked_fill(~before_limit(k_BHTD.shape[2], limit_B), 0.0)


def integrate(alpha_BT: Tensor, token_BL: Tensor, limit_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The share of each frame in each token, the frames that the token consumed, and whether it is complete."""
    after_BLT = alpha_BT.cumsum(-1).unsqueeze(1)
    before_BLT = F.pad(after_BLT, (1, 0))[..., :-1]
    token = token_BL.unsqueeze(-1)
    allowed = before_limit(alpha_BT.shape[1], limit_BL)
    share = (after_BLT.minimum(token + 1) - before_BLT.maximum(token)).clamp(min=0).masked_fill(~allowed, 0.0)
    fires = share.sum(-1, keepdim=True) >= 0.5  # a smaller remainder is dropped
    end_BL = ((before_BLT < token + 1) & allowed).sum(-1)
    return share * fires, end_BL, ((after_BLT >= token + 1) & allowed).any(-1)
