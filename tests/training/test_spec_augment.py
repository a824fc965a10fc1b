"""SpecAugment: what is hidden, how much of it at most, and that it can be drawn again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from headsync.config import TrainingConfig
from headsync.training.spec_augment import mask

BANDS = TrainingConfig(frequency_masks=1, frequency_mask_bins=12)
STRETCHES = TrainingConfig(time_masks=1, time_mask_frames=15)
ONES = np.ones((100, 80), dtype=np.float32)


def hidden(features: npt.NDArray[np.float32], config: TrainingConfig, seed: int = 1) -> npt.NDArray[np.bool_]:
    return np.asarray(mask(features, config, np.random.default_rng(seed)) == 0.0)


def test_a_band_is_hidden_in_every_frame_and_a_stretch_in_every_bin() -> None:
    for seed in range(50):
        bands, stretches = hidden(ONES, BANDS, seed), hidden(ONES, STRETCHES, seed)
        assert (bands == bands[:1]).all()
        assert (stretches == stretches[:, :1]).all()
        assert np.abs(np.diff(bands[0].astype(int))).sum() <= 2  # one piece
        assert np.abs(np.diff(stretches[:, 0].astype(int))).sum() <= 2


def test_every_width_up_to_the_largest_and_every_place_occurs() -> None:
    bands = np.array([hidden(ONES, BANDS, seed)[0] for seed in range(1000)])
    stretches = np.array([hidden(ONES, STRETCHES, seed)[:, 0] for seed in range(1000)])
    assert set(bands.sum(1)) == set(range(13))
    assert set(stretches.sum(1)) == set(range(16))
    assert bands.any(0).all()
    assert stretches.any(0).all()


@pytest.mark.parametrize("frames", [1, 3, 4, 40])
def test_never_more_than_a_quarter_of_a_short_utterance_is_hidden(frames: int) -> None:
    widths = [hidden(ONES[:frames], STRETCHES, seed)[:, 0].sum() for seed in range(200)]
    assert max(widths) == min(15, frames // 4)


def test_the_features_given_are_left_alone() -> None:
    features = ONES.copy()
    masked = mask(features, TrainingConfig(frequency_masks=3, time_masks=3), np.random.default_rng(1))
    assert (masked == 0).any()
    assert (features == 1).all()


def test_no_masks_hide_nothing() -> None:
    np.testing.assert_array_equal(mask(ONES, TrainingConfig(), np.random.default_rng(1)), ONES)


def test_the_same_draw_hides_the_same() -> None:
    both = TrainingConfig(frequency_masks=2, time_masks=2)
    np.testing.assert_array_equal(hidden(ONES, both, 7), hidden(ONES, both, 7))
    assert (hidden(ONES, both, 7) != hidden(ONES, both, 8)).any()
