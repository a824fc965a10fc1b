"""Bernoulli attention: hard monotonic (HMA), chunkwise (MoChA), multi-head (MMA-MoChA) and truncated (MTA).

At each frame a head stops with probability p, a sigmoid of its energy. Training uses the expectation over all stopping
frames. A stream stops at the first frame with p >= 1/2, starting at the boundary of the previous step. The two forms
are equal if every p is 0 or 1; noise on the energies drives p there in training. HMA, MoChA and MMA-MoChA use only the
sign of an energy in a stream, so their training may also scale the energies up (`Phase.sharpness`).

If a head of HMA, MoChA or MMA-MoChA finds no boundary, it has no context in this step and in all later steps. Its mass
is lost in the expectation as well.

Shapes: B rows, H heads, M monotonic heads, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.attention.base import Aligned, Attended, AttentionWindow, Mechanism, MechanismState, required_bias
from headsync.attention.energies import at_least_single, before_limit, energies
from headsync.attention.expectation import expected_boundaries, expected_chunks
from headsync.config import DecoderConfig

NOISE = 1.0  # deviation of the noise on energies in training, as published
HEAD_DROP = 0.5  # probability that a monotonic head is dropped in training, as published
CHUNK_FRAMES = 4  # w of MoChA, as published
WAIT_FRAMES = 8  # eps, the longest wait of a head for the others in a stream, as published


class Bernoulli(Mechanism):
    """The base class: energies with a learned bias, and with noise in training."""

    expected = True
    energy_bias: nn.Parameter

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__(config, heads, width)
        self.noise = NOISE
        self.energy_bias = required_bias(config)
        self.monotonic_heads = heads

    @property
    def energies_of_frame(self) -> int:
        return self.monotonic_heads

    def _energies(self, q_BHLD: Tensor, k_BHTD: Tensor) -> Tensor:
        """Energies of the stopping probabilities."""
        energy = at_least_single(energies(q_BHLD, k_BHTD)) + self.energy_bias
        if self.training:
            energy = energy + self.noise * torch.randn_like(energy)
        return energy


class HMA(Bernoulli):
    """Hard monotonic attention: all weight is on the boundary.

    State: the boundary of each head, and whether the head is lost because it found none.
    """

    def start(self, batch: int) -> MechanismState:
        boundary_BM = torch.zeros(batch, self.monotonic_heads, dtype=torch.long, device=self.energy_bias.device)
        return boundary_BM, boundary_BM > 0

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        allowed = before_limit(k_BHTD.shape[2], limit_BL).unsqueeze(1)
        p_BMLT = torch.sigmoid(self.phase.sharpness * self._energies(q_BHLD, k_BHTD)).masked_fill(~allowed, 0.0)
        weights = self._spread(expected_boundaries(p_BMLT), q_BHLD, k_BHTD, allowed).to(q_BHLD.dtype)
        return Aligned(weights, allowed.sum(-1).expand(weights.shape[:3]))

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: MechanismState, window: AttentionWindow) -> Attended:
        boundary_BM, lost_BM = state
        q_BHLD, frames, sight_B = q_BHD.unsqueeze(2), k_BHTD.shape[2], window.end
        allowed = before_limit(frames, sight_B)[:, None, None]
        energy_BMT = self._energies(q_BHLD, k_BHTD).squeeze(2)
        scanned = allowed.squeeze(2) & ~before_limit(frames, boundary_BM) & ~lost_BM.unsqueeze(-1)
        first_BM, fired_BM = first_true((energy_BMT >= 0) & scanned)  # p >= 1/2
        first_BM, fired_BM = self._synchronise(first_BM, fired_BM, lost_BM, sight_B)
        weights_BHT = self._around(first_BM, fired_BM, q_BHLD, k_BHTD)
        consumed_BM = torch.where(fired_BM, first_BM + 1, sight_B.unsqueeze(1).masked_fill(lost_BM, 0))
        after = torch.where(fired_BM, first_BM, boundary_BM), ~fired_BM
        settled_B = (fired_BM | lost_BM).all(1)  # later frames cannot change the boundaries
        return Attended(weights_BHT.to(q_BHD.dtype), consumed_BM, settled_B | window.complete, after)

    def _around(self, first_BM: Tensor, fired_BM: Tensor, q_BHLD: Tensor, k_BHTD: Tensor) -> Tensor:
        """The weight of each frame, from the boundaries and whether each head has stopped."""
        at_BMT = torch.arange(k_BHTD.shape[2], device=first_BM.device) == first_BM.unsqueeze(-1)
        return (at_BMT & fired_BM.unsqueeze(-1)).to(q_BHLD.dtype)

    def _spread(self, alpha_BMLT: Tensor, q_BHLD: Tensor, k_BHTD: Tensor, allowed: Tensor) -> Tensor:
        """The expected weight of each frame, from the probability of a boundary at each frame."""
        return alpha_BMLT

    def _synchronise(
        self, first_BM: Tensor, fired_BM: Tensor, lost_BM: Tensor, sight_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The boundaries, and whether each head has one."""
        return first_BM, fired_BM


class MoChA(HMA):
    """Monotonic chunkwise attention: a softmax over the w frames that end at the boundary.

    The energies of the chunk are q A k^T / sqrt(d_k), with a learned matrix A for each head.
    """

    chunk_frames = CHUNK_FRAMES

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__(config, heads, width)
        self.chunk_HDD = nn.Parameter(torch.eye(width).repeat(heads, 1, 1))

    def _spread(self, alpha_BMLT: Tensor, q_BHLD: Tensor, k_BHTD: Tensor, allowed: Tensor) -> Tensor:
        u = at_least_single(energies(q_BHLD @ self.chunk_HDD, k_BHTD)).masked_fill(~allowed, 0.0)
        return expected_chunks(alpha_BMLT, u, self.chunk_frames)

    def _around(self, first_BM: Tensor, fired_BM: Tensor, q_BHLD: Tensor, k_BHTD: Tensor) -> Tensor:
        """A softmax over the chunk that ends at the boundary."""
        back_BHT = first_BM.unsqueeze(-1) - torch.arange(k_BHTD.shape[2], device=first_BM.device)
        inside = (back_BHT >= 0) & (back_BHT < self.chunk_frames) & fired_BM.unsqueeze(-1)
        u_BHT = at_least_single(energies(q_BHLD @ self.chunk_HDD, k_BHTD)).squeeze(2)
        return u_BHT.masked_fill(~inside, torch.finfo(u_BHT.dtype).min).softmax(-1).masked_fill(~inside, 0.0)


class MMA(MoChA):
    """Monotonic multihead attention with chunks: MoChA whose heads wait for each other.

    HeadDrop makes every head learn boundaries. The quantity loss pulls the number of boundaries towards the number of
    tokens, but only after the first phase: earlier, all heads would learn to stop at the first frame.

    In a stream, once the first head of a layer has stopped at frame b, the others stop at frame b + eps at the latest.
    """

    counts_late = True
    head_drop = HEAD_DROP
    wait_frames = WAIT_FRAMES

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        aligned = super().align(q_BHLD, k_BHTD, limit_BL)
        steps_B = (limit_BL > 0).expand(-1, q_BHLD.shape[2]).sum(1)
        tokens_B = (steps_B - 1).clamp(min=0)  # without the last step, <eos>
        surplus_BM = aligned.weights_BHLT.sum((2, 3)) - tokens_B.unsqueeze(1)  # a chunk has the mass of its boundary
        weights_BHLT = self._drop_heads(aligned.weights_BHLT)
        return Aligned(weights_BHLT, aligned.end_BHL, surplus_BM if self.phase.halts else None)

    def _drop_heads(self, weights_BHLT: Tensor) -> Tensor:
        """HeadDrop: heads are dropped at random, and the others are scaled up."""
        if not self.training or not self.head_drop:
            return weights_BHLT
        shape = len(weights_BHLT), self.monotonic_heads
        stays_BM = (torch.rand(shape, device=weights_BHLT.device) >= self.head_drop).to(weights_BHLT.dtype)
        scale_BM = stays_BM * self.monotonic_heads / stays_BM.sum(1, keepdim=True).clamp(min=1)
        return weights_BHLT * scale_BM[:, :, None, None]

    def _synchronise(
        self, first_BM: Tensor, fired_BM: Tensor, lost_BM: Tensor, sight_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        never = torch.iinfo(torch.long).max - self.wait_frames
        b_B1 = first_BM.masked_fill(~fired_BM, never).amin(1, keepdim=True)
        latest_B1 = b_B1 + self.wait_frames
        due_BM = (latest_B1 < sight_B.unsqueeze(1)) & ~lost_BM
        forced_BM = due_BM & (~fired_BM | (first_BM > latest_B1))
        return torch.where(forced_BM, latest_B1, first_BM), fired_BM | forced_BM


class MTA(Bernoulli):
    """Monotonic truncated attention: w_{i,j} = p_{i,j} prod_{k<j} (1 - p_{i,k}), truncated at the boundary in a stream.

    The boundary is the first frame with p > 1/2 at or after the boundary of the previous step; without one, nothing is
    truncated. The weights do not depend on the previous step. State: the previous boundary.
    """

    def start(self, batch: int) -> MechanismState:
        return (torch.zeros(batch, self.monotonic_heads, dtype=torch.long, device=self.energy_bias.device),)

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned:
        allowed = before_limit(k_BHTD.shape[2], limit_BL).unsqueeze(1)
        weights = _first_stops(self._energies(q_BHLD, k_BHTD), allowed).to(q_BHLD.dtype)
        return Aligned(weights, allowed.sum(-1).expand(weights.shape[:3]))

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: MechanismState, window: AttentionWindow) -> Attended:
        (boundary_BH,) = state
        frames, sight_B = k_BHTD.shape[2], window.end
        allowed = before_limit(frames, sight_B)[:, None, None]
        energy = self._energies(q_BHD.unsqueeze(2), k_BHTD)
        scanned = allowed.squeeze(2) & ~before_limit(frames, boundary_BH)
        first_BH, fired_BH = first_true((energy.squeeze(2) > 0) & scanned)  # p > 1/2
        end_BH = torch.where(fired_BH, first_BH + 1, sight_B.unsqueeze(1))
        weights = _first_stops(energy, allowed).squeeze(2).masked_fill(~before_limit(frames, end_BH), 0.0)
        after = torch.where(fired_BH, first_BH, end_BH)
        return Attended(weights.to(q_BHD.dtype), end_BH, fired_BH.all(1) | window.complete, (after,))


def first_true(x: Tensor) -> tuple[Tensor, Tensor]:
    """The position of the first True on the last axis, and whether there is one."""
    return (x.long().cumsum(-1) == 0).sum(-1), x.any(-1)


def _first_stops(energy: Tensor, allowed: Tensor) -> Tensor:
    """p_j prod_{k<j} (1 - p_k), computed as a sum of logarithms for numerical stability."""
    passed = F.pad(F.logsigmoid(-energy).cumsum(-1), (1, 0))[..., :-1]
    return (F.logsigmoid(energy) + passed).exp().masked_fill(~allowed, 0.0)
