"""SpecAugment: time warping and masks of bins and frames, drawn anew in every epoch."""

from __future__ import annotations

import numpy as np

from headsync.config import TrainingConfig
from headsync.frontend.audio import FloatArray

MASKS = 2  # of each kind, as published


def augmented(features: FloatArray, config: TrainingConfig, rng: np.random.Generator) -> FloatArray:
    """Normalised features, warped and masked by the settings of the recipe."""
    return mask(warp(features, config.time_warp_frames, rng), config, rng)


def warp(features: FloatArray, most: int, rng: np.random.Generator) -> FloatArray:
    """Move a random frame by up to `most` frames; the features before and after it are stretched to fit."""
    frames = len(features)
    if not most or frames <= 2 * most:
        return features
    centre = int(rng.integers(most, frames - most))
    moved = int(rng.integers(centre - most, centre + most)) + 1
    return np.concatenate([stretched(features[:centre], moved), stretched(features[centre:], frames - moved)])


def stretched(features: FloatArray, frames: int) -> FloatArray:
    """The features with another number of frames, by linear interpolation."""
    if len(features) == frames:
        return features
    place_T = np.clip((np.arange(frames) + 0.5) * len(features) / frames - 0.5, 0, len(features) - 1)
    before_T = place_T.astype(np.int64)
    after_T = np.minimum(before_T + 1, len(features) - 1)
    share_T1 = (place_T - before_T)[:, None].astype(features.dtype)
    return (1 - share_T1) * features[before_T] + share_T1 * features[after_T]


def mask(features: FloatArray, config: TrainingConfig, rng: np.random.Generator) -> FloatArray:
    """Normalised features with some bands and spans set to their mean, zero."""
    frames, bins = features.shape
    masked = features.copy()
    for _ in range(MASKS if config.frequency_mask_bins else 0):
        masked[:, _span(bins, min(config.frequency_mask_bins, bins), rng)] = 0.0
    for _ in range(MASKS if config.time_mask_frames else 0):
        masked[_span(frames, min(config.time_mask_frames, frames // 4), rng)] = 0.0
    return masked


def _span(size: int, most: int, rng: np.random.Generator) -> slice:
    """A random span of at most `most`."""
    width = int(rng.integers(0, most + 1))
    first = int(rng.integers(0, size - width + 1))
    return slice(first, first + width)
