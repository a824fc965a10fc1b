"""Samples as features: blocks of 64, for networks that begin with a convolution over the waveform.

Shapes: samples (n,), blocks (t, 64).
"""

from __future__ import annotations

import numpy as np

from headsync.config import Config
from headsync.frontend.audio import FloatArray
from headsync.frontend.features import Features
from headsync.frontend.frame_rate import WAVEFORM


class Waveform:
    """Blocks of samples as a stream, with the interface of `Features`."""

    rate = WAVEFORM
    delay_samples = 0

    def start(self) -> FloatArray:
        """The state before the first sample: samples of a block that is not complete."""
        return np.zeros(0, np.float32)

    def step(self, samples: FloatArray, state: FloatArray, final: bool = False) -> tuple[FloatArray, FloatArray]:
        """The blocks that these samples complete, and the state."""
        waiting = np.concatenate([state, samples])
        end = len(waiting) // WAVEFORM.hop * WAVEFORM.hop
        return waiting[:end].reshape(-1, WAVEFORM.window), waiting[end:].copy()

    def whole(self, samples: FloatArray) -> FloatArray:
        """Every block of a whole utterance."""
        return self.step(samples, self.start())[0]


AnyFeatures = Features | Waveform


def build_features(config: Config) -> AnyFeatures:
    return Waveform() if config.network.family == "moonshine" else Features.of(config.features)
