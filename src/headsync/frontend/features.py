"""Features: 80 log-mel energies every 10 ms (snip_edges: a frame exists when all of its 25 ms have arrived).

Stage two of the data path. The state of a stream is a value: the samples that later frames need. The whole utterance is
the drained stream: whole and stream share `step`, so they agree bit for bit.

`Features` are the features of a model: the energies alone, or with the three columns of `pitch.py`. Pitch needs more
audio than energy, so energies wait for it.

Shapes: samples (n,), frames (t, 80) or (t, 83).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import kaldi_native_fbank
import numpy as np
import safetensors
from safetensors.numpy import load_file, save

from headsync._atomic_write import write_atomically
from headsync.config import FeaturesConfig
from headsync.errors import ModelError
from headsync.frontend.audio import SAMPLE_RATE, FloatArray
from headsync.frontend.frame_rate import FRAME_SAMPLES, HOP_SAMPLES, LOG_MEL, NUM_MEL, FrameRate
from headsync.frontend.pitch import Pitch, PitchState

_PCM_SCALE = np.float32(32768.0)  # Kaldi computes energies of 16-bit samples
_PIECE_SAMPLES = 30 * SAMPLE_RATE  # the extractor needs a Python list: bounds its memory for a long recording


def start() -> FloatArray:
    return np.zeros(0, dtype=np.float32)


def step(samples: FloatArray, rest: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The frames that these samples complete, and the samples that later frames need."""
    waiting = np.concatenate([rest, samples])
    count = 1 + (len(waiting) - FRAME_SAMPLES) // HOP_SAMPLES if len(waiting) >= FRAME_SAMPLES else 0
    if count == 0:
        return np.zeros((0, NUM_MEL), dtype=np.float32), waiting
    return _extract(waiting, count), waiting[count * HOP_SAMPLES :].copy()


def log_mel(samples: FloatArray) -> FloatArray:
    """Every frame of a whole utterance."""
    frames, rest = [np.zeros((0, NUM_MEL), dtype=np.float32)], start()
    for begin in range(0, len(samples), _PIECE_SAMPLES):
        new, rest = step(samples[begin : begin + _PIECE_SAMPLES], rest)
        frames.append(new)
    return np.concatenate(frames)


class FeatureState(NamedTuple):
    rest: FloatArray  # samples that later frames need
    energies: FloatArray  # frames that wait for their pitch
    pitch: PitchState | None


@dataclass(frozen=True)
class Features:
    """The features of a model as a stream: log-mel energies, with or without pitch."""

    pitch: Pitch | None = None
    rate: ClassVar[FrameRate] = LOG_MEL

    @classmethod
    def of(cls, config: FeaturesConfig) -> Features:
        return cls(Pitch() if config.pitch else None)

    @property
    def delay_samples(self) -> int:
        """Samples after the end of a frame that its row waits for."""
        return self.pitch.delay_samples if self.pitch else 0

    def start(self) -> FeatureState:
        return FeatureState(start(), np.zeros((0, NUM_MEL), np.float32), self.pitch.start() if self.pitch else None)

    def step(self, samples: FloatArray, state: FeatureState, final: bool = False) -> tuple[FloatArray, FeatureState]:
        """The rows that these samples complete, and the state; `final`: the audio ends here."""
        energies, rest = step(samples, state.rest)
        if self.pitch is None or state.pitch is None:
            return energies, state._replace(rest=rest)
        pitch, after = self.pitch.step(samples, state.pitch, final)
        waiting = np.concatenate([state.energies, energies])
        rows = np.concatenate([waiting[: len(pitch)], pitch], axis=1)
        return rows, FeatureState(rest, waiting[len(pitch) :].copy(), after)

    def whole(self, samples: FloatArray) -> FloatArray:
        """Every row of a whole utterance."""
        energies = log_mel(samples)
        return np.concatenate([energies, self.pitch.whole(samples)], axis=1) if self.pitch else energies


class Statistics(NamedTuple):
    """Mean and standard deviation of every column over a training set: global, hence known at the start of a stream."""

    mean: FloatArray  # (80,) or (83,)
    deviation: FloatArray

    @classmethod
    def identity(cls, columns: int) -> Statistics:
        """Statistics that do not change features."""
        return cls(np.zeros(columns, np.float32), np.ones(columns, np.float32))

    @classmethod
    def of(cls, utterances: Iterable[FloatArray]) -> Statistics:
        """The statistics of many utterances, one at a time."""
        count, total, squares = 0, np.zeros(1), np.zeros(1)  # broadcast to the number of columns
        for frames in utterances:
            exact = frames.astype(np.float64)
            count += len(exact)
            total = total + exact.sum(axis=0)
            squares = squares + np.square(exact).sum(axis=0)
        mean = total / max(count, 1)
        variance = squares / max(count, 1) - np.square(mean)
        deviation = np.sqrt(np.maximum(variance, 1e-4))  # a constant column must not cause a division by zero
        return cls(mean.astype(np.float32), deviation.astype(np.float32))

    def save(self, path: Path) -> None:
        write_atomically(path, save(self._asdict()))

    @classmethod
    def load(cls, path: Path, columns: int = NUM_MEL) -> Statistics:
        """Read the file that `save` wrote; a missing or damaged file, or one for other features, raises ModelError."""
        try:
            arrays = load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise ModelError(f"{path}: the statistics cannot be read ({error}); copy the model again.") from None
        found = tuple(arrays.get(name) for name in ("mean", "deviation"))
        fit = all(array is not None and _fits(array, columns) for array in found)
        if not fit or not (arrays["deviation"] > 0).all():
            raise ModelError(f"{path}: mean and deviation must have {columns} numbers each; copy the model again.")
        return cls(arrays["mean"], arrays["deviation"])


def normalise(frames: FloatArray, statistics: Statistics) -> FloatArray:
    """Frames with zero mean and unit variance over the training set: the input of the network."""
    return (frames - statistics.mean) / statistics.deviation


def _fits(array: FloatArray, columns: int) -> bool:
    return array.shape == (columns,) and array.dtype == np.float32 and bool(np.isfinite(array).all())


def _extract(samples: FloatArray, count: int) -> FloatArray:
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = SAMPLE_RATE
    options.frame_opts.dither = 0.0  # random noise would make two runs differ
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = NUM_MEL
    extractor = kaldi_native_fbank.OnlineFbank(options)
    extractor.accept_waveform(SAMPLE_RATE, (samples * _PCM_SCALE).tolist())
    assert extractor.num_frames_ready == count
    return np.stack([extractor.get_frame(index) for index in range(count)])
