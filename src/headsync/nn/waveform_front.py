"""The front end on samples: three convolutions, a state every 24 ms, with a running level.

Moonshine normalises the first convolution's output over the whole recording. A stream divides it by a running level
instead: the power p of that output, averaged with the weight sqrt(p) and with exponential forgetting,

    level = sum(d p^1.5) / sum(d p^0.5),    d = exp(-age / 4 s).

Loud frames have an immediate effect; a pause (40 dB below) moves the level by 3 dB only after about 18 s. The two sums
are the state of the front end. They are kept in double precision and depend on the past alone.

Shapes: B rows, T blocks of 64 samples, F = 64, N outputs of the first convolution, E width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headsync.frontend.frame_rate import SAMPLE_RATE, WAVEFORM

LEVEL_SECONDS = 4.0
LEAST_LEVEL, LEAST_WEIGHT = 3e-7, 25.0  # bound the gain in silence
VARIANCE = 0.22  # of the whole output of the convolution, in levels: measured on speech
DEVIATION = 0.085  # of that output for speech with a peak of 0.5: the size at which tanh is used
STATES = 2  # in an encoder frame


class WaveformFront(nn.Module):
    """(B, T, F) blocks of samples -> (B, N, 2 E): the two states of each encoder frame, concatenated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 127, 64, bias=False)
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.second = nn.Conv1d(width, 2 * width, 7, 3)
        self.third = nn.Conv1d(2 * width, width, 3, 2)

    def start(self, batch: int) -> Tensor:
        """The sums of the level before the first sample."""
        return torch.zeros(batch, 2, dtype=torch.float64, device=self.weight.device)

    def forward(self, blocks_BTF: Tensor, sums_B2: Tensor) -> tuple[Tensor, Tensor]:
        """The frames, and the sums after their strides, which are the state for the next blocks."""
        frames = (blocks_BTF.shape[1] - WAVEFORM.overlap) // WAVEFORM.stride
        samples = blocks_BTF[:, : WAVEFORM.needed(frames)].reshape(blocks_BTF.shape[0], 1, -1)
        x_BEN = self.first(samples)
        gain_BN, sums_B2N = level_gain(x_BEN.detach().square().mean(1), sums_B2)
        x_BEN = torch.tanh(x_BEN * gain_BN.unsqueeze(1)) * (self.weight / DEVIATION)[:, None] + self.bias[:, None]
        x_BSE = self.states(x_BEN)
        pairs = x_BSE.reshape(x_BSE.shape[0], -1, STATES * x_BSE.shape[2])
        return pairs, sums_B2N[:, :, WAVEFORM.stride * frames - 1]

    def states(self, x_BEN: Tensor) -> Tensor:
        """The second and third convolution: (B, states, E)."""
        return F.gelu(self.third(F.gelu(self.second(x_BEN)))).transpose(1, 2)


def level_gain(power_BN: Tensor, sums_B2: Tensor) -> tuple[Tensor, Tensor]:
    """The factor of each output of the convolution, and the sums of the level at each.

    decay^n (before + sum of x_m decay^-m): all terms are positive; doubles overflow only after an hour.
    """
    amplitude_BN = power_BN.double().sqrt()
    age_N = torch.arange(1, power_BN.shape[1] + 1, device=power_BN.device).double() * (WAVEFORM.hop / SAMPLE_RATE)
    fade_N = torch.exp(age_N * (-1 / LEVEL_SECONDS))
    new_B2N = torch.stack([amplitude_BN**3, amplitude_BN], 1) / fade_N
    sums_B2N = (sums_B2.unsqueeze(2) + new_B2N.cumsum(2)) * fade_N
    prior = LEAST_WEIGHT * math.sqrt(LEAST_LEVEL)
    level_BN = (sums_B2N[:, 0] + prior * LEAST_LEVEL) / (sums_B2N[:, 1] + prior)
    return (DEVIATION / (VARIANCE * level_BN).sqrt()).to(power_BN.dtype), sums_B2N
