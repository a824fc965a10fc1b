"""Augmentation: each change does to the sound what its name says, and only its generator decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headsync.audio import SAMPLE_RATE, FloatArray
from headsync.data import augment


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tone(hertz: float, seconds: float = 1.0, amplitude: float = 0.3) -> FloatArray:
    return (amplitude * np.sin(2 * np.pi * hertz * np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE)).astype(
        np.float32
    )


def pitch(samples: FloatArray) -> float:
    """The strongest frequency."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * SAMPLE_RATE / len(samples))


def power(samples: FloatArray) -> float:
    return float(np.mean(np.square(samples, dtype=np.float64)))


def band_power(samples: FloatArray, low: float, high: float) -> float:
    spectrum = np.square(np.abs(np.fft.rfft(samples)))
    hertz = np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
    return float(spectrum[(hertz >= low) & (hertz < high)].sum())


@pytest.mark.parametrize("factor", [0.8, 1.35])
def test_speed_moves_length_and_pitch_together(factor: float) -> None:
    changed = augment.speed(tone(400), factor)
    assert len(changed) == pytest.approx(SAMPLE_RATE / factor, abs=2)
    assert pitch(changed) == pytest.approx(400 * factor, rel=0.01)


@pytest.mark.parametrize("factor", [0.75, 0.83, 1.0, 1.2, 1.33])
def test_tempo_moves_the_length_and_keeps_pitch_and_power(factor: float) -> None:
    changed = augment.tempo(tone(400), factor)
    assert len(changed) == round(SAMPLE_RATE / factor)
    assert pitch(changed) == pytest.approx(400, rel=0.01)
    assert power(changed) == pytest.approx(power(tone(400)), rel=0.1)


def test_tempo_one_is_the_same_sound() -> None:
    swelling = tone(200, 0.5) * np.geomspace(0.001, 1.0, 8_000, dtype=np.float32)  # a period later it is louder
    np.testing.assert_allclose(augment.tempo(swelling, 1.0), swelling, atol=1e-6)


@pytest.mark.parametrize("length", [0, 1, 500, 959, 960, 961])
def test_sounds_of_any_shortness_pass_through_every_change(length: int) -> None:
    samples = augment.noise_of("white", length, generator()) if length else np.zeros(0, np.float32)
    augment.tempo(samples, 1.2)
    augment.speech_power(samples)
    assert augment.set_level(samples, -6.0).shape == (length,)
    if length:
        assert augment.trim(samples)[1] <= length
        assert len(augment.roughen(samples, generator())) == length


def test_trim_finds_the_speech_and_ignores_a_click() -> None:
    quiet = augment.noise_of("brown", SAMPLE_RATE, generator()) * np.float32(0.002)
    quiet[1_600] += 0.5
    quiet[6_400:9_600] += tone(700, 0.2)
    first, end = augment.trim(quiet)
    assert first == pytest.approx(6_400, abs=320)
    assert end == pytest.approx(9_600, abs=320)


def test_trim_keeps_a_sound_without_pauses_whole() -> None:
    first, end = augment.trim(tone(500))
    assert end - first > 0.9 * SAMPLE_RATE


def test_speech_power_does_not_count_pauses() -> None:
    spoken = tone(500, 0.5)
    with_pauses = np.pad(spoken, SAMPLE_RATE)
    assert augment.speech_power(with_pauses) == pytest.approx(power(spoken), rel=0.05)


@pytest.mark.parametrize("kind", augment.NOISES)
def test_noise_has_unit_power(kind: str) -> None:
    assert power(augment.noise_of(kind, 20_000, generator())) == pytest.approx(1.0, rel=1e-3)


def test_white_is_flat_pink_falls_3_and_brown_6_decibel_an_octave() -> None:
    for kind, fall in (("white", -3.0), ("pink", 0.0), ("brown", 3.0)):  # power in an octave doubles when it is flat
        noise = augment.noise_of(kind, 200_000, generator())
        ratio = 10 * np.log10(band_power(noise, 1_000, 2_000) / band_power(noise, 2_000, 4_000))
        assert ratio == pytest.approx(fall, abs=0.5)


def test_hum_sits_on_the_mains() -> None:
    hum = augment.noise_of("hum", SAMPLE_RATE, generator())
    assert band_power(hum, 45, 500) > 0.95 * band_power(hum, 0, 8_000)


def test_babble_is_made_of_the_voices() -> None:
    babble = augment.noise_of("babble", SAMPLE_RATE, generator(), [tone(300, 0.3), tone(900, 0.7)])
    voices = band_power(babble, 250, 350) + band_power(babble, 850, 950)
    assert voices > 0.9 * band_power(babble, 0, 8_000)


@pytest.mark.parametrize("snr_db", [5.0, 20.0, 40.0])
def test_noise_is_added_at_the_wanted_distance(snr_db: float) -> None:
    speech = tone(500)
    noise = augment.noise_of("white", len(speech), generator())
    added = augment.add_noise(speech, noise, snr_db) - speech
    assert 10 * np.log10(power(speech) / power(added)) == pytest.approx(snr_db, abs=0.1)


def test_background_noise_has_the_spectrum_it_was_measured_from() -> None:
    measured = augment.noise_of("pink", 40_000, generator()) * np.float32(0.01)
    made = augment.background(augment.noise_spectrum([measured]), 40_000, generator(1))
    for low, high in ((200, 500), (500, 1_000), (1_000, 2_000), (2_000, 4_000), (4_000, 8_000)):
        assert 10 * np.log10(band_power(made, low, high) / band_power(measured, low, high)) == pytest.approx(0, abs=1.0)


def test_without_a_quiet_stretch_the_background_is_silence() -> None:
    assert not augment.background(augment.noise_spectrum([tone(500)[:100]]), 1_000, generator()).any()


def test_joined_pieces_cross_fade_and_the_noise_fills_the_gaps() -> None:
    ones = np.ones(1_600, np.float32)
    noise = augment.noise_of("white", 8_000, generator()) * np.float32(0.1)
    joined = augment.join([ones, ones, ones], [800, 2_000, 5_000], noise)
    np.testing.assert_array_equal(joined[:800], noise[:800])
    np.testing.assert_array_equal(joined[3_600:5_000], noise[3_600:5_000])
    np.testing.assert_array_equal(joined[1_000:1_900], 1.0)  # inside a piece there is no added noise
    assert np.abs(joined[2_000:2_400] - 1).max() < 0.5  # two at once, faded: never their sum
    np.testing.assert_array_equal(joined[6_600:], noise[6_600:])


def test_a_room_keeps_the_direct_sound_and_adds_what_comes_later() -> None:
    click = np.zeros(SAMPLE_RATE, np.float32)
    click[1_000] = 1.0
    heard = augment.room(click, 0.4, generator())
    assert heard[1_000] == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(heard[:1_000], 0.0, atol=1e-5)
    early, late = power(heard[1_001:3_000]), power(heard[5_400:7_400])
    assert early > 100 * late > 0


def test_the_telephone_passes_its_band_only() -> None:
    for companded in (False, True):
        kept = augment.telephone(tone(1_000), companded)
        assert len(kept) == SAMPLE_RATE
        assert power(kept) == pytest.approx(power(tone(1_000)), rel=0.1)
        for hertz in (60, 5_000):
            assert power(augment.telephone(tone(hertz), companded)) < 0.01 * power(tone(hertz))


def test_companding_adds_a_little_noise() -> None:
    plain, companded = augment.telephone(tone(1_000), False), augment.telephone(tone(1_000), True)
    assert 20 < 10 * np.log10(power(plain) / power(companded - plain)) < 50


def test_equalising_changes_the_colour() -> None:
    white = augment.noise_of("white", SAMPLE_RATE, generator())
    for seed in range(8):
        changed = augment.equalise(white, generator(seed))
        before = band_power(white, 4_000, 8_000) / band_power(white, 0, 1_000)
        after = band_power(changed, 4_000, 8_000) / band_power(changed, 0, 1_000)
        assert abs(10 * np.log10(after / before)) > 0.2


def test_coding_keeps_length_level_and_most_of_the_sound() -> None:
    samples = tone(400) * np.float32(0.01)
    changed = augment.coded(samples, 24.0)
    assert len(changed) == len(samples)
    assert power(changed[2000:-2000]) == pytest.approx(power(samples[2000:-2000]), rel=0.2)
    assert not np.array_equal(changed, samples)
    noise = augment.noise_of("white", SAMPLE_RATE, generator())
    coarse, fine = (power(augment.coded(noise, kbit) - noise) for kbit in (12.0, 48.0))
    assert coarse > 1.2 * fine


def test_a_matched_sound_has_the_other_s_long_term_spectrum() -> None:
    bright = augment.noise_of("white", SAMPLE_RATE, generator(1))
    dark = augment.noise_of("pink", SAMPLE_RATE, generator(2))
    matched = augment.match_spectrum(bright, augment.speech_spectrum(dark))
    tilt = [band_power(x, 200, 800) / band_power(x, 2_000, 7_000) for x in (bright, dark, matched)]
    assert tilt[0] < 0.2
    assert tilt[2] == pytest.approx(tilt[1], rel=0.15)


@pytest.mark.parametrize("peak_db", [-40.0, -1.0, 6.0])
def test_the_level_is_set_by_the_peak(peak_db: float) -> None:
    assert 20 * np.log10(np.abs(augment.set_level(tone(500), peak_db)).max()) == pytest.approx(peak_db, abs=1e-3)
    assert not augment.set_level(np.zeros(10, np.float32), peak_db).any()


CHANGES: dict[str, Callable[[FloatArray, np.random.Generator], FloatArray]] = {
    "room": lambda samples, random: augment.room(samples, 0.3, random),
    "equalise": augment.equalise,
    "roughen": augment.roughen,
    "babble": lambda samples, random: augment.roughen(samples, random, lambda: [tone(300), tone(500)]),
    "hum": lambda samples, random: augment.noise_of("hum", len(samples), random),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_generator_alone_decides(name: str) -> None:
    samples = tone(500, 0.5)
    once, again, other = (CHANGES[name](samples, generator(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, other)
    assert once.dtype == np.float32
    np.testing.assert_array_equal(samples, tone(500, 0.5))  # the sound that went in is untouched


def test_roughened_sound_stays_within_full_scale() -> None:
    samples = tone(500, 0.3)
    for seed in range(60):
        peak = np.abs(augment.roughen(samples, generator(seed))).max()
        assert augment.decibel(-40.1) < peak < augment.decibel(-0.9)
