"""Signal processing for the digit strings: trimming, background noise, spectra and joining.

All functions work on mono float32 samples at 16 kHz. Random values come from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from audio_effects import filter_by_gain, frame_powers
from headsync.frontend.audio import SAMPLE_RATE, FloatArray

FRAME_SAMPLES = 160
WIDTH = 256  # samples of an analysis window; spectra have 129 bins

Spectrum = npt.NDArray[np.float64]


def trim(samples: FloatArray) -> tuple[int, int]:
    """First and last sample of the speech, found by energy above the background of the recording."""
    # The difference of samples removes low-frequency rumble, which would hide an /f/ or /th/.
    levels = 10.0 * np.log10(frame_powers(np.diff(samples, prepend=samples[:1])) + 1e-12)
    if len(levels) == 0:
        return 0, len(samples)
    threshold = max(float(np.percentile(levels, 10)) + 6.0, float(levels.max()) - 35.0)
    loud = levels > min(threshold, float(levels.max()) - 10.0)
    # A click is one loud frame among quiet frames; speech lasts longer.
    lasting = loud & (np.convolve(np.pad(loud, 2), np.ones(5), mode="valid") >= 3)
    where = np.flatnonzero(lasting if lasting.any() else loud)
    if len(where) == 0:
        return 0, len(samples)
    return int(where[0]) * FRAME_SAMPLES, min(len(samples), int(where[-1] + 1) * FRAME_SAMPLES)


def tempo(samples: FloatArray, factor: float) -> FloatArray:
    """Change the duration by 1 / factor at constant pitch: overlap-add of the best matching windows (WSOLA)."""
    window_samples, reach = 480, 160
    hop = window_samples // 2
    if len(samples) < 2 * window_samples:
        return samples
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_samples) / window_samples)).astype(np.float32)
    length = round(len(samples) / factor)
    count = -(-length // hop) + 1
    padded = np.pad(samples, (hop + reach, window_samples + 2 * reach + hop))
    out = np.zeros((count + 1) * hop, dtype=np.float32)
    natural = reach  # where the previous window would continue
    for index in range(count):
        wanted = min(round(index * hop * factor), len(samples))  # start of the searched range in `padded`
        begin = wanted + _best_lag(padded, natural, wanted, hop, reach) if index else reach
        out[index * hop : index * hop + window_samples] += window * padded[begin : begin + window_samples]
        natural = begin + hop
    return out[hop : hop + length]


def _best_lag(padded: FloatArray, natural: int, wanted: int, hop: int, reach: int) -> int:
    target = padded[natural : natural + hop]
    stretch = padded[wanted : wanted + hop + 2 * reach]
    energies = np.convolve(np.square(stretch), np.ones(hop, dtype=np.float32), mode="valid")
    return int(np.argmax(2.0 * np.correlate(stretch, target, mode="valid") - energies))  # least squared distance


def speech_spectrum(samples: FloatArray) -> Spectrum:
    """Long-term power spectrum of the loud frames of a recording."""
    if len(samples) < WIDTH:
        return np.ones(WIDTH // 2 + 1)
    views = np.lib.stride_tricks.sliding_window_view(samples, WIDTH)[:: WIDTH // 2]
    powers = np.square(np.abs(np.fft.rfft(views * np.hanning(WIDTH))))
    loud = powers.sum(1) >= 0.1 * powers.sum(1).mean()
    smooth = np.convolve(np.pad(powers[loud].mean(0), 2, mode="edge"), np.full(5, 0.2), mode="valid")
    return np.asarray(smooth / max(float(smooth.mean()), 1e-20) + 1e-9)


def match_spectrum(samples: FloatArray, spectrum: Spectrum) -> FloatArray:
    """Filter the samples to the given long-term spectrum, by at most 20 dB at any frequency."""
    bins = np.linspace(0, SAMPLE_RATE / 2, len(spectrum))
    gains = np.clip(np.sqrt(spectrum / speech_spectrum(samples)), 0.1, 10.0)
    return filter_by_gain(samples, lambda hertz: np.interp(hertz, bins, gains))


def noise_spectrum(stretches: Sequence[FloatArray]) -> Spectrum:
    """Power spectrum of the background noise, from stretches without speech."""
    views = [np.lib.stride_tricks.sliding_window_view(s, WIDTH)[:: WIDTH // 2] for s in stretches if len(s) >= WIDTH]
    if not views:
        return np.zeros(WIDTH // 2 + 1)
    taper = np.hanning(WIDTH)
    powers = np.square(np.abs(np.fft.rfft(np.concatenate(views) * taper))) / np.square(taper).sum()
    # The median ignores a breath or a click in a few windows; for noise it is ln 2 times the mean.
    return np.asarray(np.median(powers, axis=0) / np.log(2.0))


def background(spectrum: Spectrum, length: int, generator: np.random.Generator) -> FloatArray:
    """Noise with the given power spectrum."""
    bins = np.linspace(0, SAMPLE_RATE / 2, len(spectrum))
    white = generator.standard_normal(length, dtype=np.float32)
    return filter_by_gain(white, lambda hertz: np.interp(hertz, bins, np.sqrt(spectrum)))


def join(pieces: Sequence[FloatArray], starts: Sequence[int], noise: FloatArray) -> FloatArray:
    """Place the pieces into background noise; overlapping pieces are cross-faded, the noise fills the gaps."""
    voice, weight = np.zeros_like(noise), np.zeros_like(noise)
    ends = [start + len(piece) for start, piece in zip(starts, pieces, strict=True)]
    for index, (piece, start, end) in enumerate(zip(pieces, starts, ends, strict=True)):
        fade_in = ends[index - 1] - start if index else 0
        fade_out = end - starts[index + 1] if index + 1 < len(pieces) else 0
        envelope = np.ones(len(piece), dtype=np.float32)
        envelope *= _ramp(len(piece), fade_in)
        envelope *= _ramp(len(piece), fade_out)[::-1]
        voice[start:end] += envelope * piece
        weight[start:end] += np.square(envelope)
    return np.asarray(voice + noise * np.sqrt(np.clip(1.0 - weight, 0.0, 1.0)), dtype=np.float32)


def _ramp(length: int, fade: int) -> FloatArray:
    """A quarter sine over `fade` samples, at least 5 ms to avoid clicks, then one."""
    fade = min(max(fade, SAMPLE_RATE // 200), length)
    ramp = np.ones(length, dtype=np.float32)
    ramp[:fade] = np.sin((np.arange(fade) + 0.5) * (0.5 * np.pi / fade))
    return ramp
