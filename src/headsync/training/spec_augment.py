"""SpecAugment: bands of bins and stretches of frames hidden from the network, drawn anew in every epoch."""

from __future__ import annotations

import numpy as np

from headsync.config import TrainingConfig
from headsync.frontend.audio import FloatArray


def mask(features: FloatArray, config: TrainingConfig, rng: np.random.Generator) -> FloatArray:
    """Normalised features with some bands and stretches set to their mean, which is zero."""
    frames, bins = features.shape
    masked = features.copy()
    for _ in range(config.frequency_masks):
        width = int(rng.integers(0, min(config.frequency_mask_bins, bins) + 1))
        first = int(rng.integers(0, bins - width + 1))
        masked[:, first : first + width] = 0.0
    for _ in range(config.time_masks):
        width = int(rng.integers(0, min(config.time_mask_frames, frames // 4) + 1))
        first = int(rng.integers(0, frames - width + 1))
        masked[first : first + width] = 0.0
    return masked
