"""SpecAugment: what is hidden, how much of it at most, and that it can be drawn again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from headsync.config import TrainingConfig
from headsync.training import spec_augment
from headsync.training.spec_augment import augmented, mask, stretched, warp

BANDS = TrainingConfig(frequency_mask_bins=12)
STRETCHES = TrainingConfig(time_mask_frames=15)
ONES = np.ones((100, 80), dtype=np.float32)


@pytest.fixture
def one_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_augment, "MASKS", 1)


def hidden(features: npt.NDArray[np.float32], config: TrainingConfig, seed: int = 1) -> npt.NDArray[np.bool_]:
    return np.asarray(mask(features, config, np.random.default_rng(seed)) == 0.0)


@pytest.mark.usefixtures("one_mask")
def test_a_band_is_hidden_in_every_frame_and_a_stretch_in_every_bin() -> None:
    for seed in range(50):
        bands, stretches = hidden(ONES, BANDS, seed), hidden(ONES, STRETCHES, seed)
        assert (bands == bands[:1]).all()
        assert (stretches == stretches[:, :1]).all()
        assert np.abs(np.diff(bands[0].astype(int))).sum() <= 2  # one piece
        assert np.abs(np.diff(stretches[:, 0].astype(int))).sum() <= 2


@pytest.mark.usefixtures("one_mask")
def test_every_width_up_to_the_largest_and_every_place_occurs() -> None:
    bands = np.array([hidden(ONES, BANDS, seed)[0] for seed in range(1000)])
    stretches = np.array([hidden(ONES, STRETCHES, seed)[:, 0] for seed in range(1000)])
    assert set(bands.sum(1)) == set(range(13))
    assert set(stretches.sum(1)) == set(range(16))
    assert bands.any(0).all()
    assert stretches.any(0).all()


@pytest.mark.usefixtures("one_mask")
@pytest.mark.parametrize("frames", [1, 3, 4, 40])
def test_never_more_than_a_quarter_of_a_short_utterance_is_hidden(frames: int) -> None:
    widths = [hidden(ONES[:frames], STRETCHES, seed)[:, 0].sum() for seed in range(200)]
    assert max(widths) == min(15, frames // 4)


def test_there_are_two_masks_of_each_kind() -> None:
    for axis, config in ((0, BANDS), (1, STRETCHES)):
        edges = [np.abs(np.diff(hidden(ONES, config, seed).all(axis).astype(int))).sum() for seed in range(200)]
        assert 2 < max(edges) <= 4  # of two separate pieces


def test_the_given_features_are_unchanged() -> None:
    features = ONES.copy()
    masked = mask(features, TrainingConfig(frequency_mask_bins=20, time_mask_frames=30), np.random.default_rng(1))
    assert (masked == 0).any()
    assert (features == 1).all()


def test_without_masks_features_are_unchanged() -> None:
    np.testing.assert_array_equal(mask(ONES, TrainingConfig(), np.random.default_rng(1)), ONES)


def test_the_same_seed_gives_the_same_masks() -> None:
    both = TrainingConfig(frequency_mask_bins=20, time_mask_frames=30)
    np.testing.assert_array_equal(hidden(ONES, both, 7), hidden(ONES, both, 7))
    assert (hidden(ONES, both, 7) != hidden(ONES, both, 8)).any()


def rising(frames: int) -> npt.NDArray[np.float32]:
    """Features whose values are their frame numbers."""
    return np.repeat(np.arange(frames, dtype=np.float32)[:, None], 3, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_warp_moves_one_frame_by_up_to_the_setting_and_stretches_both_sides(seed: int) -> None:
    warped = warp(rising(60), 5, np.random.default_rng(seed))
    centre, moved = (int(n) for n in _draw(seed, 60, 5))
    assert 5 <= centre < 55
    assert abs(moved - centre) <= 5
    assert warped.shape == (60, 3)
    assert (np.diff(warped[:, 0]) >= 0).all()
    left, right = centre / moved, (60 - centre) / (60 - moved)  # frames of before in a frame
    assert warped[moved - 1, 0] == pytest.approx(centre - 0.5 - left / 2, abs=max(left, 1) / 2)
    assert warped[moved, 0] == pytest.approx(centre - 0.5 + right / 2, abs=max(right, 1) / 2)
    np.testing.assert_array_equal(warped[:moved], stretched(rising(60)[:centre], moved))
    np.testing.assert_array_equal(warped[moved:], stretched(rising(60)[centre:], 60 - moved))


def _draw(seed: int, frames: int, most: int) -> tuple[int, int]:
    rng = np.random.default_rng(seed)
    centre = int(rng.integers(most, frames - most))
    return centre, int(rng.integers(centre - most, centre + most)) + 1


def test_warps_differ_and_short_utterances_have_none() -> None:
    assert len({warp(rising(60), 5, np.random.default_rng(seed)).tobytes() for seed in range(20)}) > 10
    for frames in (1, 9, 10):
        np.testing.assert_array_equal(warp(rising(frames), 5, np.random.default_rng(1)), rising(frames))


@pytest.mark.parametrize(
    ("size", "frames"), [(4, 8), (4, 2), (57, 60), (60, 57), (6, 1), (1, 3), (300, 305), (300, 295)]
)
def test_a_stretch_is_bicubic_as_in_espnet(size: int, frames: int) -> None:
    """ESPnet resizes with Pillow, as an image of a pixel for each frame and bin."""
    features = np.random.default_rng(0).normal(size=(size, 83)).astype(np.float32)
    expected = np.asarray(Image.fromarray(features).resize((83, frames), Image.Resampling.BICUBIC))
    np.testing.assert_allclose(stretched(features, frames), expected, atol=1e-6)
    assert stretched(features, frames).dtype == np.float32


def test_without_a_warp_masks_are_drawn_as_before() -> None:
    both = TrainingConfig(frequency_mask_bins=20, time_mask_frames=30)
    random = np.random.default_rng(0).normal(size=(100, 80)).astype(np.float32)
    expected = mask(random, both, np.random.default_rng(3))
    np.testing.assert_array_equal(augmented(random, both, np.random.default_rng(3)), expected)
