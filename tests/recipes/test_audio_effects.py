"""Audio effects: the effect of each function, which depends on its generator alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import audio_effects
from headsync.frontend.audio import SAMPLE_RATE, FloatArray
from sounds import band_power, generator, pitch, power, tone


@pytest.mark.parametrize("factor", [0.8, 1.35])
def test_speed_changes_length_and_pitch(factor: float) -> None:
    changed = audio_effects.speed(tone(400), factor)
    assert len(changed) == pytest.approx(SAMPLE_RATE / factor, abs=2)
    assert pitch(changed) == pytest.approx(400 * factor, rel=0.01)


@pytest.mark.parametrize("length", [0, 1, 500, 959, 960, 961])
def test_very_short_audio_passes_through_every_augmentation(length: int) -> None:
    samples = audio_effects.noise_of("white", length, generator()) if length else np.zeros(0, np.float32)
    audio_effects.speech_power(samples)
    assert audio_effects.set_level(samples, -6.0).shape == (length,)
    if length:
        assert len(audio_effects.degrade(samples, generator())) == length


def test_speech_power_does_not_count_pauses() -> None:
    spoken = tone(500, 0.5)
    with_pauses = np.pad(spoken, SAMPLE_RATE)
    assert audio_effects.speech_power(with_pauses) == pytest.approx(power(spoken), rel=0.05)


@pytest.mark.parametrize("kind", audio_effects.NOISES)
def test_noise_has_unit_power(kind: str) -> None:
    assert power(audio_effects.noise_of(kind, 20_000, generator())) == pytest.approx(1.0, rel=1e-3)


def test_white_is_flat_pink_falls_3_and_brown_6_decibel_an_octave() -> None:
    for kind, fall in (("white", -3.0), ("pink", 0.0), ("brown", 3.0)):  # power in an octave doubles when it is flat
        noise = audio_effects.noise_of(kind, 200_000, generator())
        ratio = 10 * np.log10(band_power(noise, 1_000, 2_000) / band_power(noise, 2_000, 4_000))
        assert ratio == pytest.approx(fall, abs=0.5)


def test_hum_is_at_the_mains_frequency() -> None:
    hum = audio_effects.noise_of("hum", SAMPLE_RATE, generator())
    assert band_power(hum, 45, 500) > 0.95 * band_power(hum, 0, 8_000)


def test_babble_is_made_of_the_voices() -> None:
    babble = audio_effects.noise_of("babble", SAMPLE_RATE, generator(), [tone(300, 0.3), tone(900, 0.7)])
    voices = band_power(babble, 250, 350) + band_power(babble, 850, 950)
    assert voices > 0.9 * band_power(babble, 0, 8_000)


@pytest.mark.parametrize("snr_db", [5.0, 20.0, 40.0])
def test_noise_is_added_at_the_given_snr(snr_db: float) -> None:
    speech = tone(500)
    noise = audio_effects.noise_of("white", len(speech), generator())
    added = audio_effects.add_noise(speech, noise, snr_db) - speech
    assert 10 * np.log10(power(speech) / power(added)) == pytest.approx(snr_db, abs=0.1)


def test_a_room_keeps_the_direct_sound_and_adds_reflections() -> None:
    click = np.zeros(SAMPLE_RATE, np.float32)
    click[1_000] = 1.0
    heard = audio_effects.room(click, 0.4, generator())
    assert heard[1_000] == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(heard[:1_000], 0.0, atol=1e-5)
    early, late = power(heard[1_001:3_000]), power(heard[5_400:7_400])
    assert early > 100 * late > 0


def test_the_telephone_is_a_band_pass() -> None:
    for companded in (False, True):
        kept = audio_effects.telephone(tone(1_000), companded)
        assert len(kept) == SAMPLE_RATE
        assert power(kept) == pytest.approx(power(tone(1_000)), rel=0.1)
        for hertz in (60, 5_000):
            assert power(audio_effects.telephone(tone(hertz), companded)) < 0.01 * power(tone(hertz))


def test_companding_adds_a_little_noise() -> None:
    plain, companded = audio_effects.telephone(tone(1_000), False), audio_effects.telephone(tone(1_000), True)
    assert 20 < 10 * np.log10(power(plain) / power(companded - plain)) < 50


def test_equalising_changes_the_spectrum() -> None:
    white = audio_effects.noise_of("white", SAMPLE_RATE, generator())
    for seed in range(8):
        changed = audio_effects.equalise(white, generator(seed))
        before = band_power(white, 4_000, 8_000) / band_power(white, 0, 1_000)
        after = band_power(changed, 4_000, 8_000) / band_power(changed, 0, 1_000)
        assert abs(10 * np.log10(after / before)) > 0.2


def test_opus_keeps_length_and_level() -> None:
    samples = tone(400) * np.float32(0.01)
    changed = audio_effects.opus(samples, 24.0)
    assert len(changed) == len(samples)
    assert power(changed[2000:-2000]) == pytest.approx(power(samples[2000:-2000]), rel=0.2)
    assert not np.array_equal(changed, samples)
    noise = audio_effects.noise_of("white", SAMPLE_RATE, generator())
    coarse, fine = (power(audio_effects.opus(noise, kbit) - noise) for kbit in (12.0, 48.0))
    assert coarse > 1.2 * fine


@pytest.mark.parametrize("peak_db", [-40.0, -1.0, 6.0])
def test_the_level_is_set_by_the_peak(peak_db: float) -> None:
    assert 20 * np.log10(np.abs(audio_effects.set_level(tone(500), peak_db)).max()) == pytest.approx(peak_db, abs=1e-3)
    assert not audio_effects.set_level(np.zeros(10, np.float32), peak_db).any()


CHANGES: dict[str, Callable[[FloatArray, np.random.Generator], FloatArray]] = {
    "room": lambda samples, random: audio_effects.room(samples, 0.3, random),
    "equalise": audio_effects.equalise,
    "degrade": audio_effects.degrade,
    "babble": lambda samples, random: audio_effects.degrade(samples, random, lambda: [tone(300), tone(500)]),
    "hum": lambda samples, random: audio_effects.noise_of("hum", len(samples), random),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_generator_state_gives_the_same_audio(name: str) -> None:
    samples = tone(500, 0.5)
    once, again, other = (CHANGES[name](samples, generator(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, other)
    assert once.dtype == np.float32
    np.testing.assert_array_equal(samples, tone(500, 0.5))  # the sound that went in is untouched


def test_degraded_audio_stays_within_full_scale() -> None:
    samples = tone(500, 0.3)
    for seed in range(60):
        peak = np.abs(audio_effects.degrade(samples, generator(seed))).max()
        assert audio_effects.decibel(-40.1) < peak < audio_effects.decibel(-0.9)
