"""The interface of online attention mechanisms.

The caller gives each output step a *limit*: the look-ahead M, a CTC trigger, or none. The mechanism decides where the
step *halts* and which *weights* the frames before the halt have.

Shapes: B rows, H heads, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headsync.config import DecoderConfig
from headsync.errors import ConfigError

MechanismState = tuple[Tensor, ...]  # passed from one output step to the next; batch first

NO_LIMIT = 2**31 - 1  # larger than any number of frames


class AttentionWindow(NamedTuple):
    """The frames that one output step may attend to."""

    limit_B: Tensor  # first frame beyond the limit: t_{i-1} + M, a CTC trigger, or NO_LIMIT
    frames_B: Tensor  # encoder frames available so far
    final_B: Tensor  # whether the encoder output is complete
    threshold_B: Tensor | None = None  # halting threshold of each row; None: that of the mechanism

    @property
    def end(self) -> Tensor:
        """First frame that is beyond the limit or not available yet."""
        return torch.minimum(self.limit_B, self.frames_B)

    @property
    def complete(self) -> Tensor:
        """Whether every frame before the limit is available, so that the step is decided in any case."""
        return (self.frames_B >= self.limit_B) | self.final_B


class Attended(NamedTuple):
    """The result of one output step."""

    weights_BHT: Tensor
    end_BH: Tensor  # frames consumed by each head, s_i^{h,l} of eq. (10)
    ready_B: Tensor  # False: undecided; repeat the step when more frames are available
    state: MechanismState  # for the next step


class Aligned(NamedTuple):
    """The result of all output steps in parallel."""

    weights_BHLT: Tensor
    end_BHL: Tensor
    surplus_BM: Tensor | None = None  # counted minus spoken tokens, for mechanisms that count tokens
    shortfall_BM: Tensor | None = None  # by how much halting sums miss `decoder.reach`, in thresholds


class Phase(NamedTuple):
    """The halting of output steps in one phase of training."""

    halts: bool = True  # False in the first phase: every step attends to all frames, and tokens are not counted
    sharpness: float = 1.0  # scales the energies in `align`, for mechanisms whose `align` is an expectation


class Mechanism(nn.Module, ABC):
    """A mechanism: `align` for training and `step` for streaming; `headsync.testing` checks that they agree.

    `step` is pure: an undecided step is discarded and repeated with the same state when more frames are available. In
    `align`, a padded output step has the limit 0 and attends to nothing. `width` is the width of a head.
    """

    energy_bias: nn.Parameter | None  # of mechanisms with `energies_of_frame`
    expected = False  # whether `align` is an expectation; `step` equals it only if all probabilities are 0 or 1
    counts_late = False  # whether tokens are counted (for the quantity loss) only after the first phase of training

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__()
        self.threshold = config.threshold  # of each head; can be changed on a trained model (Table 4)
        self.phase = Phase(sharpness=config.sharpness)  # set by training; a trained model always halts

    @staticmethod
    def attends(config: DecoderConfig, layer: int) -> bool:
        """Whether decoder layer `layer` has cross-attention; layer 0 is the lowest."""
        return True

    @property
    def energies_of_frame(self) -> int:
        """Energies of a frame in a step whose sigmoids are probabilities; 0 if the mechanism has none.

        The first energy is the scaled product of the first entries of query and key, and so on.
        """
        return 0

    def bias_each_head(self) -> None:
        """Give every energy of a frame a bias, in place of one for all."""
        if self.energies_of_frame and self.energy_bias is not None:
            self.energy_bias = nn.Parameter(self.energy_bias.detach().repeat(self.energies_of_frame, 1, 1))

    def start(self, batch: int) -> MechanismState:
        return ()  # every step starts at the first frame

    @abstractmethod
    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned: ...

    @abstractmethod
    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: MechanismState, window: AttentionWindow) -> Attended: ...


def required_bias(config: DecoderConfig) -> nn.Parameter:
    """The learned bias of the energies, for mechanisms that require one."""
    if config.energy_bias is None:
        raise ConfigError(f'decoder.energy_bias = "none": {config.attention} requires a bias; set a number')
    return nn.Parameter(torch.tensor(config.energy_bias))
