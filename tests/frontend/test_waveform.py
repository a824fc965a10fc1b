"""Samples as features: the same blocks for any chunking, and the number per encoder frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headsync.frontend.frame_rate import LOG_MEL, WAVEFORM, FrameRate
from headsync.frontend.waveform import Waveform


@given(st.integers(0, 700), st.lists(st.integers(0, 700), max_size=6))
def test_any_cutting_gives_the_same_blocks(length: int, cuts: list[int]) -> None:
    samples = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    features, blocks = Waveform(), []
    state = features.start()
    for piece in np.split(samples, sorted(min(cut, length) for cut in cuts)):
        new, state = features.step(piece, state)
        blocks.append(new)
    whole = features.whole(samples)
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    np.testing.assert_array_equal(whole.reshape(-1), samples[: length // 64 * 64])


def test_an_encoder_frame_of_samples_is_48_milliseconds() -> None:
    assert pytest.approx(0.048) == WAVEFORM.seconds
    assert WAVEFORM.needed_samples(1) == 384 + 896  # two states of 24 ms; one sees 895 samples, in whole blocks 896


@pytest.mark.parametrize("rate", [LOG_MEL, WAVEFORM])
def test_numbers_of_samples_features_and_frames_agree(rate: FrameRate) -> None:
    for count in range(1, 200):
        assert rate.embedded(rate.needed(count)) == count
        assert rate.embedded(rate.needed(count) - 1) == count - 1
        assert rate.features(rate.needed_samples(count)) == rate.needed(count)
        assert rate.features(rate.needed_samples(count) - 1) == rate.needed(count) - 1
    assert rate.embedded(0) == rate.features(0) == 0
