"""Normalised cross-correlation of audio with itself: how well each pitch explains each frame.

The audio is filtered and resampled to 4 kHz. A frame of 25 ms is correlated with the audio at lags of 1/400 to 1/50 s,
at every sample, and interpolated to a grid of lags that is uniform in the logarithm of pitch.

Shapes: F frames, L lags in samples of 4 kHz, S lags of the grid, T taps of the interpolation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headsync.frontend.audio import SAMPLE_RATE, FloatArray
from headsync.frontend.frame_rate import FRAME_SAMPLES, HOP_SAMPLES

LOWEST_HERTZ, HIGHEST_HERTZ = 50.0, 400.0
GRID_STEP = 0.005  # of pitch, relative

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_STRIDE = 4  # samples of 16 kHz for one of 4 kHz
_SLOW_RATE = SAMPLE_RATE // _STRIDE
_WINDOW, _HOP = FRAME_SAMPLES // _STRIDE, HOP_SAMPLES // _STRIDE
_BALLAST = 7000.0  # lowers the correlation of quiet frames, so that the path runs straight through them
_NOISE_AMPLITUDE = 2.0**-16  # half a step of 16 bits; noise of this amplitude makes silence uncorrelated


def _windowed_sinc(seconds: Doubles, cutoff_hertz: float, zeros: int) -> Doubles:
    """An ideal low-pass filter, truncated by a Hann window after this number of zeros."""
    half_width = zeros / (2.0 * cutoff_hertz)
    hann = np.where(np.abs(seconds) < half_width, 0.5 + 0.5 * np.cos(np.pi * seconds / half_width), 0.0)
    return 2.0 * cutoff_hertz * np.sinc(2.0 * cutoff_hertz * seconds) * hann


_LOW_PASS = _windowed_sinc(np.arange(-7, 8) / SAMPLE_RATE, 1_000.0, zeros=1) / SAMPLE_RATE
_FILTER_REACH = len(_LOW_PASS) // 2

_NUM_STATES = int(math.log(HIGHEST_HERTZ / LOWEST_HERTZ) / math.log(1.0 + GRID_STEP)) + 1
LAGS_S = np.power(1.0 + GRID_STEP, np.arange(_NUM_STATES, dtype=np.float64)) / HIGHEST_HERTZ  # that a path can take
_STATES = np.arange(len(LAGS_S))
_FIRST_LAG = math.ceil(_SLOW_RATE / HIGHEST_HERTZ - 2.5)
_LAST_LAG = math.floor(_SLOW_RATE / LOWEST_HERTZ + 2.5)
NUM_LAGS = _LAST_LAG - _FIRST_LAG + 1
_SPAN = _WINDOW + _LAST_LAG  # samples of 4 kHz that a frame needs
SPAN_SAMPLES = _STRIDE * (_SPAN - 1) + 1 + _FILTER_REACH  # and of 16 kHz
_ONES = np.ones(_WINDOW)
_NUM_TAPS = 10
_FIRST_TAPS_S = np.clip(np.ceil(LAGS_S * _SLOW_RATE - 5), _FIRST_LAG, _LAST_LAG - _NUM_TAPS + 1).astype(np.intp)
_TAPS_TS = _FIRST_TAPS_S - _FIRST_LAG + np.arange(_NUM_TAPS)[:, None]  # index among the whole lags
_TAP_SECONDS_TS = (_FIRST_LAG + _TAPS_TS) / _SLOW_RATE
_TAP_WEIGHTS_TS = _windowed_sinc(LAGS_S - _TAP_SECONDS_TS, _SLOW_RATE / 2, zeros=5) / _SLOW_RATE

_TAP_MATRIX_LS = np.zeros((NUM_LAGS, len(LAGS_S)), np.float32)
_TAP_MATRIX_LS[_TAPS_TS, _STATES] = _TAP_WEIGHTS_TS


class SlowAudio(NamedTuple):
    """The audio of a stream at 4 kHz: the part that later frames still need."""

    rest: FloatArray  # 16 kHz samples that the filter still needs
    audio: Doubles
    totals: Doubles  # sum of all samples of the stream up to each one
    squares: Doubles  # and of their squares
    begin: int  # number of samples of the stream before these
    received: int  # 16 kHz samples so far

    @classmethod
    def start(cls) -> SlowAudio:
        nothing = np.zeros(0)
        return cls(np.zeros(_FILTER_REACH, np.float32), nothing, nothing, nothing, 0, 0)

    def push(self, samples: FloatArray, final: bool) -> SlowAudio:
        """Filter to below 1 kHz and keep every fourth sample; running sums continue in order."""
        received = self.received + len(samples)
        before = self.begin + len(self.audio)
        ready = (received - _FILTER_REACH + _STRIDE - 1) // _STRIDE
        count = -(-received // _STRIDE) - before if final else max(0, ready - before)
        silence = np.zeros(_FILTER_REACH if final else 0, np.float32)
        waiting = np.concatenate([self.rest, samples, silence])
        new = np.zeros(count)
        for tap, weight in enumerate(_LOW_PASS):
            new += weight * waiting[tap : tap + _STRIDE * count : _STRIDE]
        audio = np.concatenate([self.audio, new])
        totals, squares = _continue_sums(self.totals, new), _continue_sums(self.squares, new * new)
        return SlowAudio(waiting[_STRIDE * count :].copy(), audio, totals, squares, self.begin, received)

    def drop(self, frames: int) -> SlowAudio:
        """Without the samples that only the first `frames` frames need; the last running sum is kept."""
        count = min(frames * _HOP - self.begin, len(self.audio) - 1)
        if count <= 0:
            return self
        audio, totals, squares = (array[count:].copy() for array in (self.audio, self.totals, self.squares))
        return SlowAudio(self.rest, audio, totals, squares, self.begin + count, self.received)

    def new_frames(self, frames: int, final: bool) -> int:
        """The number of frames after the first `frames` that can be correlated; at the end, all log-mel frames."""
        if final:
            total = 1 + (self.received - FRAME_SAMPLES) // HOP_SAMPLES
        else:
            total = 1 + (self.begin + len(self.audio) - _SPAN) // _HOP
        return max(0, total - frames)


def _continue_sums(sums: Doubles, new: Doubles) -> Doubles:
    """Running sums over more samples, strictly in order, so that they are bit-identical for any chunking."""
    more = np.cumsum(np.concatenate([sums[-1:], new]))
    return np.concatenate([sums, more[len(sums[-1:]) :]])


def correlate(slow: SlowAudio, first: int, count: int) -> tuple[Doubles, Doubles]:
    """Normalised cross-correlations (F, L) at whole lags: with ballast for the path, without it for voicing."""
    begins = (first + np.arange(count)) * _HOP - slow.begin
    audio = np.concatenate([slow.audio, np.zeros(_SPAN)])  # the last frames reach beyond the end
    around = windows(audio, _SPAN)[begins]
    around = around - (np.ascontiguousarray(around[:, :_WINDOW]).sum(axis=1) / _WINDOW)[:, None]
    squares = around * around
    products, energies = np.zeros((2, count, NUM_LAGS))
    for index in range(count):  # frame by frame, because sums over many frames at once may run in another order
        products[index] = np.correlate(around[index, _FIRST_LAG:], around[index, :_WINDOW], "valid")
        energies[index] = np.correlate(squares[index, _FIRST_LAG:], _ONES, "valid")
    energies *= np.ascontiguousarray(squares[:, :_WINDOW]).sum(axis=1)[:, None]
    energies += np.square(_WINDOW * _NOISE_AMPLITUDE**2)
    return products / np.sqrt(energies + _ballast(slow, begins)[:, None]), products / np.sqrt(energies)


def _ballast(slow: SlowAudio, begins: Indices) -> Doubles:
    """Proportional to the squared variance of the stream up to the end of each frame."""
    last = np.minimum(begins + _SPAN, len(slow.audio))
    mean = slow.totals[last - 1] / (slow.begin + last)
    variance = slow.squares[last - 1] / (slow.begin + last) - mean * mean
    return np.asarray(_BALLAST * np.square(variance * _WINDOW))


def interpolate(correlations_FL: Doubles) -> FloatArray:
    """Correlations (F, S) at the lags of the grid."""
    found_FS = np.empty((len(correlations_FL), len(LAGS_S)), np.float32)
    for index, correlations_L in enumerate(correlations_FL.astype(np.float32)):  # frame by frame, as above
        np.dot(correlations_L, _TAP_MATRIX_LS, out=found_FS[index])
    return found_FS


def correlation_at(states: Indices, correlations_FL: Doubles) -> Doubles:
    """The correlation of each frame at its lag of the grid."""
    rows = np.arange(len(states))
    found_TF = correlations_FL[rows, _TAPS_TS[:, states]] * _TAP_WEIGHTS_TS[:, states]
    return np.asarray(np.cumsum(found_TF, axis=0)[-1])  # in order: one tap after the other


def windows(values: Doubles, width: int) -> Doubles:
    """Every window of this width, as a view; numpy's own function is too slow for one call per push."""
    return np.ndarray((len(values) - width + 1, width), np.float64, values, strides=2 * values.strides)
