"""Test signals and their measures."""

from __future__ import annotations

import numpy as np

from headsync.frontend.audio import SAMPLE_RATE, FloatArray


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
