"""SpecAugment: time warping and masks of bins and frames, drawn anew in every epoch."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

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
    """The features with another number of frames, by bicubic interpolation as in ESPnet."""
    size = len(features)
    if size == frames:
        return features
    width = max(size / frames, 1.0)  # of the kernel, which is wider if frames become fewer
    centre_T1 = (np.arange(frames)[:, None] + 0.5) * size / frames
    place_TK = np.floor(centre_T1 - 2 * width) + np.arange(math.ceil(4 * width) + 1)
    share_TK = np.where((place_TK >= 0) & (place_TK < size), _cubic((place_TK + 0.5 - centre_T1) / width), 0.0)
    share_TK /= share_TK.sum(1, keepdims=True)
    taps_TKF = features[np.clip(place_TK, 0, size - 1).astype(np.int64)]
    return np.einsum("tk,tkf->tf", share_TK, taps_TKF).astype(features.dtype)


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The cubic convolution kernel with a = -1/2."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x**2 + 1.0, ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


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
    width = int(rng.integers(0, most + 1))
    first = int(rng.integers(0, size - width + 1))
    return slice(first, first + width)
