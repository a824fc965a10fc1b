"""The narrow interface of online attention: where may a step look, where does it stop, how much of each frame.

Three things vary between mechanisms and are kept apart. The *limit* comes from outside (look-ahead M, a CTC trigger, or
none); the *halt* and the *weights* are the mechanism's own.

Shapes: B rows, H heads, L output steps, T encoder frames, D head width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from headsync.config import DecoderConfig
from headsync.errors import ConfigError

State = tuple[Tensor, ...]  # what a mechanism carries from one output step to the next, batch first

NO_LIMIT = 2**31 - 1  # a limit that no stream reaches: look at everything there will ever be


class Window(NamedTuple):
    """What one output step may look at."""

    limit_B: Tensor  # first frame it may not look at: t_{i-1} + M, a CTC trigger, or NO_LIMIT
    frames_B: Tensor  # encoder frames there are so far
    final_B: Tensor  # whether no more will come


class Attended(NamedTuple):
    """The outcome of one output step."""

    weights_BHT: Tensor
    end_BH: Tensor  # frames consumed by each head, s_i^{h,l} of eq. (10)
    ready_B: Tensor  # False: undecided, ask again when there are more frames
    state: State  # for the next step


class Aligned(NamedTuple):
    """The outcome of all output steps at once."""

    weights_BHLT: Tensor
    end_BHL: Tensor
    surplus_BM: Tensor | None = None  # tokens counted less tokens spoken, for mechanisms that count tokens
    shortfall_BM: Tensor | None = None  # by how much halting sums miss `decoder.reach`, in thresholds


class Phase(NamedTuple):
    """How output steps stop at one stage of training."""

    halts: bool = True  # False in the first stage: every step attends to all frames, and no token is counted
    sharpness: float = 1.0  # factor of the energies in `align`, for mechanisms whose `align` is an expectation


class OnlineAttention(Protocol):
    """A mechanism: `align` for training and `step` for streaming, bound to each other by contract.

    `step` is pure: an undecided step is thrown away and tried again, with the same state, when more frames have come.
    In `align`, an output step that does not exist, being padding, has the limit 0: it may look at nothing.
    """

    threshold: float  # of each head; changeable on a trained model (Table 4)
    phase: Phase  # set by training; a trained model always halts
    expected: bool  # whether `align` is an expectation, which `step` equals only where probabilities are 0 or 1

    def start(self, batch: int) -> State: ...

    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned: ...

    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: State, window: Window) -> Attended: ...


class Mechanism(nn.Module, ABC):
    """What most mechanisms have in common; `width` is that of a head."""

    expected = False
    counts_late = False  # whether it counts tokens (the quantity loss), but only after the first phase of training

    def __init__(self, config: DecoderConfig, heads: int, width: int) -> None:
        super().__init__()
        self.threshold = config.threshold
        self.phase = Phase(sharpness=config.sharpness)

    @staticmethod
    def attends(config: DecoderConfig, layer: int) -> bool:
        """Whether decoder layer `layer`, counted from the lowest, has cross-attention at all."""
        return True

    def start(self, batch: int) -> State:
        return ()  # every step starts again at the first frame

    @abstractmethod
    def align(self, q_BHLD: Tensor, k_BHTD: Tensor, limit_BL: Tensor) -> Aligned: ...

    @abstractmethod
    def step(self, q_BHD: Tensor, k_BHTD: Tensor, state: State, window: Window) -> Attended: ...


def required_bias(config: DecoderConfig) -> nn.Parameter:
    """The learned bias of the energies, for mechanisms that are published with one."""
    if config.energy_bias is None:
        raise ConfigError(f'decoder.energy_bias = "none": {config.attention} needs a bias; set a number')
    return nn.Parameter(torch.tensor(config.energy_bias))


def energies(q_BHLD: Tensor, k_BHTD: Tensor) -> Tensor:
    """Scaled dot products, eq. (4)."""
    return side_by_side(q_BHLD / math.sqrt(q_BHLD.shape[-1]), k_BHTD.transpose(-1, -2))


def side_by_side(x_BHLD: Tensor, y_MHDT: Tensor) -> Tensor:
    """The products of rows with what they look at; in single steps, all rows that look at the same in one product."""
    if x_BHLD.shape[2] != 1 or 0 in y_MHDT.shape:
        return x_BHLD @ y_MHDT
    memories, heads, width, frames = y_MHDT.shape
    x_MHGD = x_BHLD.reshape(memories, -1, heads, width).transpose(1, 2)
    return (x_MHGD @ y_MHDT).transpose(1, 2).reshape(-1, heads, 1, frames)


def may_look(frames: int, limit: Tensor) -> Tensor:
    """True where frame j lies before the limit; the frames become a new last axis."""
    return torch.arange(frames, device=limit.device) < limit.unsqueeze(-1)


def at_least_single(x: Tensor) -> Tensor:
    """Sums over many frames need float32; in half precision they stop growing."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def decidable(window: Window) -> Tensor:
    """Whether all that the limit allows has arrived, so that a step is decided in any case."""
    return (window.frames_B >= window.limit_B) | window.final_B


def reach(window: Window) -> Tensor:
    """First frame that this step cannot see now."""
    return torch.minimum(window.limit_B, window.frames_B)
