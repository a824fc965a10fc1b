"""Augmentation for robust streams: level, clipping, noise, telephone band, companding, surrounding silence."""

from __future__ import annotations

import numpy as np
import soxr

RATE = 16_000
FFT_STEP = 4096  # lengths with large prime factors are slow to transform


def noise(length: int, rng: np.random.Generator) -> np.ndarray:
    """Noise of unit power with a random slope between white and brown, sometimes with a hum."""
    size = -(-length // FFT_STEP) * FFT_STEP
    white = np.fft.rfft(rng.standard_normal(size).astype(np.float32))
    frequency = np.maximum(np.arange(len(white)), 20 * size / RATE)
    coloured = np.fft.irfft(white / frequency ** rng.uniform(0, 1.0), size)[:length]
    if rng.random() < 0.2:
        time = np.arange(length) / RATE
        coloured = coloured / coloured.std() + np.sin(2 * np.pi * rng.choice([50.0, 60.0, 100.0, 120.0]) * time)
    return (coloured / (coloured.std() + 1e-9)).astype(np.float32)


def power(samples: np.ndarray) -> float:
    """Mean square of the louder half, so that pauses do not count."""
    squares = samples[: len(samples) // 160 * 160].reshape(-1, 160) ** 2
    means = squares.mean(1) if len(squares) else np.zeros(1)
    return float(np.sort(means)[len(means) // 2 :].mean()) + 1e-10


def telephone(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """300 to 3400 Hz by way of 8 kHz, companded to 8 bits (mu-law)."""
    narrow = soxr.resample(samples, RATE, 8000)
    spectrum = np.fft.rfft(narrow)
    frequency = np.fft.rfftfreq(len(narrow), 1 / 8000)
    low, high = rng.uniform(150, 350), rng.uniform(3200, 3600)
    spectrum *= 1 / (1 + (low / np.maximum(frequency, 1)) ** 8) / (1 + (frequency / high) ** 16)
    narrow = np.fft.irfft(spectrum, len(narrow))
    peak = np.abs(narrow).max() + 1e-9
    companded = np.sign(narrow) * np.log1p(255 * np.abs(narrow) / peak) / np.log1p(255)
    companded = np.round(companded * 127) / 127
    narrow = np.sign(companded) * np.expm1(np.abs(companded) * np.log1p(255)) / 255 * peak
    wide = soxr.resample(narrow.astype(np.float32), 8000, RATE)
    return np.pad(wide, (0, max(0, len(samples) - len(wide))))[: len(samples)]


def augmented(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One utterance: telephone band in one of eight cases, noise in one of three."""
    if rng.random() < 0.125:
        samples = telephone(samples, rng)
    if rng.random() < 0.33:
        amplitude = np.sqrt(power(samples) / 10 ** (rng.uniform(8, 35) / 10))
        samples = samples + noise(len(samples), rng) * np.float32(amplitude)
    return samples


def random_peak(rng: np.random.Generator) -> float:
    """Peak of a row in dBFS: half of the rows at usual levels, some very quiet, some clipped."""
    kind = rng.random()
    if kind < 0.5:
        return float(rng.uniform(-20, -1))
    return float(rng.uniform(-50, -20)) if kind < 0.9 else float(rng.uniform(0, 15))


def at_peak(row: np.ndarray, decibel: float) -> np.ndarray:
    """Samples with a peak in dBFS (clipped above 0), in 16 bits."""
    row = row * (10 ** (decibel / 20) / max(float(np.abs(row).max()), 1e-6))
    return (np.round(np.clip(row, -1, 1) * 32767) / 32768).astype(np.float32)


def finished(row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A whole row at a random level."""
    return at_peak(row, random_peak(rng))
