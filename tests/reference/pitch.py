"""Kaldi's pitch features of a whole utterance, literally: nothing is decided before the end is known.

The energy of the ballast is that of the whole utterance, the path is the best of all paths, and the mean of the
normalisation reaches 75 frames to both sides (`compute-kaldi-pitch-feats` and `process-kaldi-pitch-feats` with their
defaults). Kaldi adds noise with a deviation of 0.005 to the slope, before it is scaled; here there is none.
"""

from __future__ import annotations

import math

import numpy as np

from headsync.frontend.pitch_correlation import LAGS_S
from reference import Array

CONTEXT = 75  # frames of the mean, to either side
WINDOW, HOP, FIRST_LAG, LAST_LAG = 100, 40, 8, 82  # samples of 4 kHz


def features(slow: Array, frames: int) -> Array:
    """Rows (f, 3) of the audio at 4 kHz: voicing, normalised pitch, slope."""
    with_ballast, without = zip(*(correlations(slow, frame) for frame in range(frames)), strict=True)
    between = np.array([weights(lag) for lag in LAGS_S])
    path = best_path([between @ found for found in with_ballast])
    log_pitch = [-math.log(LAGS_S[state]) for state in path]
    nccf = [float(between[state] @ found) for found, state in zip(without, path, strict=True)]
    return np.array([row(frame, log_pitch, nccf) for frame in range(frames)])


def correlations(slow: Array, frame: int) -> tuple[Array, Array]:
    """Of one frame at the whole lags: with the ballast of the whole utterance, and without."""
    around = np.concatenate([slow, np.zeros(WINDOW + LAST_LAG)])[HOP * frame :][: WINDOW + LAST_LAG]
    around = around - around[:WINDOW].mean()
    ballast, floor = 7000 * (float(slow.var()) * WINDOW) ** 2, (WINDOW * 2.0**-32) ** 2
    products, energies = [], []
    for lag in range(FIRST_LAG, LAST_LAG + 1):
        products.append(around[:WINDOW] @ around[lag : lag + WINDOW])
        energies.append(around[:WINDOW] @ around[:WINDOW] * (around[lag : lag + WINDOW] @ around[lag : lag + WINDOW]))
    energy = np.array(energies) + floor
    return np.array(products) / np.sqrt(energy + ballast), np.array(products) / np.sqrt(energy)


def weights(seconds: float) -> Array:
    """For the correlation at any lag, the weights of the whole lags: a windowed sinc of five zeros, cut at 2 kHz."""
    t = seconds - np.arange(FIRST_LAG, LAST_LAG + 1) / 4000
    window = np.where(np.abs(t) < 5 / 4000, 0.5 * (1 + np.cos(2 * np.pi * 2000 / 5 * t)), 0.0)
    return np.asarray(window * np.sinc(4000 * t))


def best_path(correlation: list[Array]) -> list[int]:
    """Viterbi over all states, from the first frame to the last."""
    states = np.arange(len(LAGS_S))
    jumps = 0.1 * math.log(1.005) ** 2 * (states[:, None] - states) ** 2
    forward, back = np.zeros(len(states)), []
    for values in correlation:
        reached = forward + jumps  # by state, from every state before
        back.append(reached.argmin(1))
        forward = reached.min(1) + 1 - values + 10 * LAGS_S * values
    path = [int(forward.argmin())]
    for before in back[:0:-1]:
        path.append(int(before[path[-1]]))
    return path[::-1]


def row(frame: int, log_pitch: list[float], nccf: list[float]) -> list[float]:
    """The three features of a frame."""
    near = range(max(0, frame - CONTEXT), min(len(nccf), frame + CONTEXT + 1))
    mean = sum(voicing(nccf[n]) * log_pitch[n] for n in near) / sum(voicing(nccf[n]) for n in near)
    at = [log_pitch[min(max(frame + n, 0), len(nccf) - 1)] for n in range(-2, 3)]
    slope = sum(n * value for n, value in zip(range(-2, 3), at, strict=True)) / 10
    voiced = (1.0001 - min(1.0, max(-1.0, nccf[frame]))) ** 0.15 - 1
    return [2 * voiced, 2 * (log_pitch[frame] - mean), 10 * slope]


def voicing(nccf: float) -> float:
    """The published probability that a frame is voiced."""
    c = min(abs(nccf), 1.0)
    odds = -5.2 + 5.4 * math.exp(7.5 * (c - 1)) + 4.8 * c - 2 * math.exp(-10 * c) + 4.2 * math.exp(20 * (c - 1))
    return 1 / (1 + math.exp(-odds))
