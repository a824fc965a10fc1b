"""Trimming, joining and matching of sounds in the digit strings."""

from __future__ import annotations

import numpy as np
import pytest

import digit_sounds
from audio_effects import noise_of
from headsync.frontend.audio import SAMPLE_RATE
from sounds import band_power, generator, pitch, power, tone


@pytest.mark.parametrize("factor", [0.75, 0.83, 1.0, 1.2, 1.33])
def test_tempo_moves_the_length_and_keeps_pitch_and_power(factor: float) -> None:
    changed = digit_sounds.tempo(tone(400), factor)
    assert len(changed) == round(SAMPLE_RATE / factor)
    assert pitch(changed) == pytest.approx(400, rel=0.01)
    assert power(changed) == pytest.approx(power(tone(400)), rel=0.1)


def test_tempo_one_is_the_same_sound() -> None:
    swelling = tone(200, 0.5) * np.geomspace(0.001, 1.0, 8_000, dtype=np.float32)  # a period later it is louder
    np.testing.assert_allclose(digit_sounds.tempo(swelling, 1.0), swelling, atol=1e-6)


def test_trim_finds_the_speech_and_ignores_a_click() -> None:
    quiet = noise_of("brown", SAMPLE_RATE, generator()) * np.float32(0.002)
    quiet[1_600] += 0.5
    quiet[6_400:9_600] += tone(700, 0.2)
    first, end = digit_sounds.trim(quiet)
    assert first == pytest.approx(6_400, abs=320)
    assert end == pytest.approx(9_600, abs=320)


def test_trim_keeps_a_sound_without_pauses_whole() -> None:
    first, end = digit_sounds.trim(tone(500))
    assert end - first > 0.9 * SAMPLE_RATE


def test_background_noise_has_the_spectrum_it_was_measured_from() -> None:
    measured = noise_of("pink", 40_000, generator()) * np.float32(0.01)
    made = digit_sounds.background(digit_sounds.noise_spectrum([measured]), 40_000, generator(1))
    for low, high in ((200, 500), (500, 1_000), (1_000, 2_000), (2_000, 4_000), (4_000, 8_000)):
        assert 10 * np.log10(band_power(made, low, high) / band_power(measured, low, high)) == pytest.approx(0, abs=1.0)


def test_without_a_quiet_stretch_the_background_is_silence() -> None:
    assert not digit_sounds.background(digit_sounds.noise_spectrum([tone(500)[:100]]), 1_000, generator()).any()


def test_joined_pieces_cross_fade_and_the_noise_fills_the_gaps() -> None:
    ones = np.ones(1_600, np.float32)
    noise = noise_of("white", 8_000, generator()) * np.float32(0.1)
    joined = digit_sounds.join([ones, ones, ones], [800, 2_000, 5_000], noise)
    np.testing.assert_array_equal(joined[:800], noise[:800])
    np.testing.assert_array_equal(joined[3_600:5_000], noise[3_600:5_000])
    np.testing.assert_array_equal(joined[1_000:1_900], 1.0)  # inside a piece there is no added noise
    assert np.abs(joined[2_000:2_400] - 1).max() < 0.5  # two at once, faded: never their sum
    np.testing.assert_array_equal(joined[6_600:], noise[6_600:])


def test_a_matched_sound_has_the_other_s_long_term_spectrum() -> None:
    bright = noise_of("white", SAMPLE_RATE, generator(1))
    dark = noise_of("pink", SAMPLE_RATE, generator(2))
    matched = digit_sounds.match_spectrum(bright, digit_sounds.speech_spectrum(dark))
    tilt = [band_power(x, 200, 800) / band_power(x, 2_000, 7_000) for x in (bright, dark, matched)]
    assert tilt[0] < 0.2
    assert tilt[2] == pytest.approx(tilt[1], rel=0.15)


@pytest.mark.parametrize("length", [0, 1, 500, 959, 960, 961])
def test_short_sounds_are_accepted(length: int) -> None:
    samples = noise_of("white", length, generator()) if length else np.zeros(0, np.float32)
    digit_sounds.tempo(samples, 1.2)
    if length:
        assert digit_sounds.trim(samples)[1] <= length
