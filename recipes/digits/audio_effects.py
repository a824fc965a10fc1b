"""Audio effects: pure functions on mono float32 samples at 16 kHz.

Random values come from the generator that is passed in: the result depends on the samples and the seed alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from headsync.frontend.audio import SAMPLE_RATE, FloatArray

NOISES = ("white", "pink", "brown", "hum")
FRAME_SAMPLES = 160  # 10 ms

Gain = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]  # frequencies in Hz -> amplitudes


def decibel(value: float) -> float:
    """The amplitude factor of a level in decibels."""
    return float(10.0 ** (value / 20.0))


def speed(samples: FloatArray, factor: float) -> FloatArray:
    """Resample to play faster (factor above 1) or slower; tempo, pitch and formants change together."""
    return np.asarray(soxr.resample(samples, SAMPLE_RATE * factor, SAMPLE_RATE), dtype=np.float32)


def speech_power(samples: FloatArray) -> float:
    """Mean power of the loud frames; pauses do not count."""
    powers = frame_powers(samples)
    if len(powers) == 0:
        return float(np.mean(np.square(samples))) if len(samples) else 0.0
    return float(powers[powers >= 0.1 * powers.mean()].mean())


def noise_of(kind: str, length: int, generator: np.random.Generator, voices: Sequence[FloatArray] = ()) -> FloatArray:
    """Noise of unit power: white, pink, brown, hum, or babble made from the given voices."""
    if kind == "hum":
        noise = _hum(length, generator)
    elif kind == "babble":
        noise = _babble(length, voices, generator)
    else:
        slope = {"white": 0.0, "pink": 0.5, "brown": 1.0}[kind]
        white = generator.standard_normal(length, dtype=np.float32)
        noise = filter_by_gain(white, lambda hertz: np.maximum(hertz, 20.0) ** -slope) if slope else white
    return noise / np.float32(max(float(np.sqrt(np.mean(np.square(noise)))), 1e-9))


def add_noise(samples: FloatArray, noise: FloatArray, snr_db: float) -> FloatArray:
    """Add noise of unit power at a speech-to-noise ratio."""
    return samples + noise * np.float32(np.sqrt(speech_power(samples)) * decibel(-snr_db))


def degrade(
    samples: FloatArray, generator: np.random.Generator, voices: Callable[[], Sequence[FloatArray]] | None = None
) -> FloatArray:
    """Random room, noise, telephone line or microphone, Opus coding, clipping and level.

    `voices` returns speech for babble; without it no babble is added.
    """
    if generator.random() < 0.4:
        samples = room(samples, generator.uniform(0.1, 0.7), generator)
    if generator.random() < 0.8:
        kind = str(generator.choice([*NOISES, "babble"] if voices else NOISES))
        noise = noise_of(kind, len(samples), generator, voices() if voices and kind == "babble" else ())
        samples = add_noise(samples, noise, generator.uniform(5.0, 40.0))
    line = generator.random()
    if line < 0.2:
        samples = telephone(samples, companded=bool(generator.random() < 0.5))
    elif line < 0.3:
        samples = equalise(samples, generator)
    if generator.random() < 0.2:
        samples = opus(samples, generator.uniform(12.0, 48.0))
    if generator.random() < 0.02:
        samples = np.clip(set_level(samples, generator.uniform(2.0, 10.0)), -1.0, 1.0)
    return set_level(samples, generator.uniform(-40.0, -1.0))


def room(samples: FloatArray, rt60_seconds: float, generator: np.random.Generator) -> FloatArray:
    """Convolve with a random room response: direct path, early reflections, decaying diffuse tail."""
    length = max(1, round(rt60_seconds * SAMPLE_RATE))
    seconds = np.arange(length) / SAMPLE_RATE
    tail = generator.standard_normal(length) * 10.0 ** (-3.0 * seconds / rt60_seconds)
    tail[: SAMPLE_RATE // 500] = 0.0
    tail *= decibel(-generator.uniform(0.0, 12.0)) / max(float(np.sqrt(np.square(tail).sum())), 1e-9)
    early = generator.integers(SAMPLE_RATE // 500, max(length // 2, SAMPLE_RATE // 400), size=generator.integers(2, 7))
    tail[np.minimum(early, length - 1)] += generator.uniform(-0.4, 0.4, size=len(early))
    tail[0] = 1.0
    return _convolve(samples, tail.astype(np.float32))


def telephone(samples: FloatArray, companded: bool) -> FloatArray:
    """A telephone line: 8 kHz, 300 to 3400 Hz, optionally with 8-bit mu-law companding."""
    narrow = np.asarray(soxr.resample(samples, SAMPLE_RATE, 8_000), dtype=np.float32)
    narrow = filter_by_gain(narrow, _telephone_band, rate=8_000)
    if companded:
        narrow = _mu_law(narrow)
    wide = np.asarray(soxr.resample(narrow, 8_000, SAMPLE_RATE), dtype=np.float32)
    return np.pad(wide, (0, max(0, len(samples) - len(wide))))[: len(samples)]


def opus(samples: FloatArray, kbit: float) -> FloatArray:
    """Encode with Opus at about this bit rate, and decode."""
    peak = max(float(np.abs(samples).max(initial=0.0)), 1e-9)
    level = 1.0 - (kbit - 6.0) / 250.0  # libsndfile: 256 kbit/s at 0, 6 kbit/s at 1
    file = io.BytesIO()
    driven = samples * np.float32(0.5 / peak)
    soundfile.write(file, driven, SAMPLE_RATE, format="OGG", subtype="OPUS", compression_level=level)
    file.seek(0)
    decoded, _ = soundfile.read(file, dtype="float32")
    whole = np.pad(decoded, (0, max(0, len(samples) - len(decoded))))[: len(samples)]
    return np.asarray(whole * np.float32(peak / 0.5))


def equalise(samples: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Another microphone: a low-pass between 2.5 and 7 kHz, or a tilt of up to 6 dB per octave."""
    if generator.random() < 0.5:
        edge = generator.uniform(2_500.0, 7_000.0)
        return filter_by_gain(samples, lambda hertz: 1.0 / np.sqrt(1.0 + (hertz / edge) ** 12))
    tilt = generator.uniform(-6.0, 6.0)
    return filter_by_gain(samples, lambda hertz: 10.0 ** (tilt * np.log2(np.clip(hertz, 125.0, None) / 1_000.0) / 20.0))


def set_level(samples: FloatArray, peak_db: float) -> FloatArray:
    """Scale to this peak level in dB relative to full scale; above 0 dB the samples clip when stored."""
    peak = float(np.abs(samples).max(initial=0.0))
    return samples * np.float32(decibel(peak_db) / peak) if peak > 0 else samples


def frame_powers(samples: FloatArray) -> npt.NDArray[np.float64]:
    """Mean power of each frame of 10 ms."""
    count = len(samples) // FRAME_SAMPLES
    frames = samples[: count * FRAME_SAMPLES].reshape(count, FRAME_SAMPLES)
    return np.asarray(np.einsum("ts,ts->t", frames, frames) / FRAME_SAMPLES, dtype=np.float64)


def filter_by_gain(samples: FloatArray, gain: Gain, rate: int = SAMPLE_RATE) -> FloatArray:
    """Zero-phase filtering in the frequency domain; gains are computed on a coarse grid and interpolated."""
    size = _transform_size(len(samples) + rate // 20)
    grid = np.linspace(0.0, rate / 2, 1025)
    gains = np.interp(np.linspace(0.0, rate / 2, size // 2 + 1), grid, gain(grid)).astype(np.float32)
    return np.asarray(np.fft.irfft(np.fft.rfft(samples, size) * gains, size)[: len(samples)], dtype=np.float32)


def _convolve(samples: FloatArray, response: FloatArray) -> FloatArray:
    size = _transform_size(len(samples) + len(response))
    spectrum = np.fft.rfft(samples, size) * np.fft.rfft(response, size)
    return np.asarray(np.fft.irfft(spectrum, size)[: len(samples)], dtype=np.float32)


def _transform_size(length: int) -> int:
    """The next size that is a power of two, or three quarters of one."""
    power = 1 << max(4, int(length - 1).bit_length())
    return power * 3 // 4 if power * 3 // 4 >= length else power


def _telephone_band(hertz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low = 1.0 / np.sqrt(1.0 + (300.0 / np.maximum(hertz, 1.0)) ** 8)
    return np.asarray(low / np.sqrt(1.0 + (hertz / 3_400.0) ** 24))


def _mu_law(samples: FloatArray) -> FloatArray:
    peak = max(float(np.abs(samples).max(initial=0.0)), 1e-9)
    driven = samples * np.float32(0.5 / peak)  # lines are driven below full scale
    code = np.round(np.sign(driven) * np.log1p(255.0 * np.abs(driven)) / np.log(256.0) * 127.0) / 127.0
    return np.asarray(np.sign(code) * np.expm1(np.abs(code) * np.log(256.0)) / 255.0 * (peak / 0.5), dtype=np.float32)


def _hum(length: int, generator: np.random.Generator) -> FloatArray:
    mains = generator.choice([50.0, 60.0]) * generator.uniform(0.998, 1.002)
    turn = np.linspace(0.0, 2.0 * np.pi, 4096, endpoint=False)
    amplitudes, phases = generator.random(8) / np.arange(1, 9), generator.uniform(0.0, 2.0 * np.pi, 8)
    period = sum(a * np.sin(h * turn + p) for h, a, p in zip(range(1, 9), amplitudes, phases, strict=True))
    places = (np.arange(length) * (mains / SAMPLE_RATE * 4096)).astype(np.int64) % 4096
    hiss = np.float32(0.02) * generator.standard_normal(length, dtype=np.float32)
    return np.asarray(np.asarray(period, dtype=np.float32)[places] + hiss)


def _babble(length: int, voices: Sequence[FloatArray], generator: np.random.Generator) -> FloatArray:
    total = np.zeros(length, dtype=np.float32)
    for voice in voices:
        scaled = voice / np.float32(max(np.sqrt(speech_power(voice)), 1e-9)) * np.float32(generator.uniform(0.4, 1.0))
        begin = int(generator.integers(len(voice)))
        total += np.take(scaled, np.arange(begin, begin + length), mode="wrap")
    return total
