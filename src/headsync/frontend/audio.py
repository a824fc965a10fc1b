"""Audio: the first stage of the data path. Files and arrays of any rate and channel count become mono at 16 kHz.

Decoding, mixing down and resampling do not depend on how the audio is split into chunks: the samples are bit-identical.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headsync.errors import AudioError
from headsync.frontend.decoders import AudioBlock, decode
from headsync.frontend.frame_rate import SAMPLE_RATE as SAMPLE_RATE

LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000
MOST_CHANNELS = 64
LARGEST_FLOAT = 16.0  # 24 dB above full scale: larger than any audio, smaller than unscaled integers of speech

FloatArray = npt.NDArray[np.float32]
Piece = tuple[FloatArray, int]  # samples and their rate


def read_audio(path: str | os.PathLike[str]) -> Piece:
    """A whole audio file as samples of shape (samples, channels) and their rate."""
    pieces = list(stream_audio(path, piece_seconds=60.0))
    return np.concatenate([samples for samples, _ in pieces]), pieces[0][1]


def stream_audio(path: str | os.PathLike[str], piece_seconds: float = 0.1) -> Iterator[Piece]:
    """An audio file in pieces of (samples, channels) and their rate, in bounded memory; at least one piece."""
    path = Path(path)
    _check_readable(path)
    empty = True
    for samples, rate in _cut(_checked(decode(path), path), piece_seconds):
        empty = False
        yield samples, rate
    if empty:
        raise AudioError(f"{path}: the file contains no samples; record it again.")


def mix_down(samples: npt.ArrayLike) -> FloatArray:
    """Mono float32 from (samples,) or (samples, channels): integers are scaled to -1..1, channels are averaged."""
    try:
        array = np.asarray(samples)
    except ValueError:  # lists of different lengths
        raise AudioError("the samples are not a table of numbers; pass (samples,) or (samples, channels).") from None
    if array.ndim not in (1, 2):
        raise AudioError(f"an array of shape {array.shape} is not audio; pass (samples,) or (samples, channels).")
    if array.ndim == 2 and not 1 <= array.shape[1] <= MOST_CHANNELS:
        raise AudioError(f"an array of shape {array.shape} has {array.shape[1]} channels; pass (samples, channels).")
    scaled = _scale(array)
    remedy = "pass samples.astype(np.int16) if they are 16-bit integers, or divide them by 32768."
    _check_values(scaled, "", "check where the audio comes from.", remedy)
    mono = scaled if scaled.ndim == 1 else scaled.mean(axis=1, dtype=np.float32)
    return np.ascontiguousarray(mono)


class Resampler:
    """A stream of mono audio at some rate, resampled to 16 kHz; any chunking of the input gives the same samples."""

    def __init__(self, rate: int) -> None:
        _check_rate(rate)
        self.rate = rate
        self._stream = None if rate == SAMPLE_RATE else _open_soxr(rate)

    def push(self, mono: FloatArray) -> FloatArray:
        """The samples at 16 kHz that these samples complete."""
        if self._stream is None:
            return mono
        return np.asarray(self._stream.resample_chunk(np.ascontiguousarray(mono, dtype=np.float32)), dtype=np.float32)

    def finish(self) -> FloatArray:
        """The last samples; afterwards the resampler can be used for another stream."""
        nothing = np.zeros(0, dtype=np.float32)
        if self._stream is None:
            return nothing
        rest = np.asarray(self._stream.resample_chunk(nothing, last=True), dtype=np.float32)
        self._stream.clear()
        return rest


def resample(mono: FloatArray, rate: int) -> FloatArray:
    """The whole recording at 16 kHz: the drained stream, so the values are the same."""
    resampler = Resampler(rate)
    return np.concatenate([resampler.push(mono), resampler.finish()])


def _cut(blocks: Iterable[AudioBlock], piece_seconds: float) -> Iterator[Piece]:
    """The same samples in pieces of equal length; the last one may be shorter."""
    waiting: list[FloatArray] = []
    count = rate = 0
    for samples, rate in blocks:
        size = max(1, round(piece_seconds * rate))
        waiting.append(samples)
        count += len(samples)
        if count >= size:
            ready = np.concatenate(waiting)
            count = len(ready) % size
            yield from ((ready[begin : begin + size], rate) for begin in range(0, len(ready) - count, size))
            waiting = [ready[len(ready) - count :]]
    if count:
        yield np.concatenate(waiting), rate


def _checked(blocks: Iterable[AudioBlock], path: Path) -> Iterator[AudioBlock]:
    """The same blocks; rate, channels and values outside the accepted range are errors that name the file."""
    for samples, rate in blocks:
        _check_rate(rate, f"{path}: ")
        if samples.shape[1] > MOST_CHANNELS:
            raise AudioError(f"{path}: {samples.shape[1]} channels; at most {MOST_CHANNELS} are accepted: mix it down.")
        _check_values(samples, f"{path}: ", "record it again.", "write it again as 16-bit PCM, or divide by 32768.")
        yield samples, rate


def _check_values(samples: FloatArray, where: str, remedy: str, remedy_unscaled: str) -> None:
    largest = float(np.abs(samples).max(initial=0.0))
    if not math.isfinite(largest):
        raise AudioError(f"{where}there are samples that are not finite (NaN or infinity); {remedy}")
    if largest > LARGEST_FLOAT:
        raise AudioError(
            f"{where}float samples must lie between -1 and 1, but there is one of {largest:.5g}, as in audio that "
            f"was not scaled; {remedy_unscaled}"
        )


def _scale(array: npt.NDArray[Any]) -> FloatArray:
    if array.dtype in (np.int16, np.int32):
        return (array / np.float64(-int(np.iinfo(array.dtype).min))).astype(np.float32)
    if np.issubdtype(array.dtype, np.floating):
        with np.errstate(over="ignore"):  # too large for float32: infinite, and refused as such
            return array.astype(np.float32, copy=False)
    raise AudioError(f"samples of type {array.dtype} are not supported; pass float32, int16 or int32.")


def _check_rate(rate: int, where: str = "") -> None:
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
        raise AudioError(f"a sample rate of {rate!r} is not an integer; pass samples per second, for example 16000.")
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        allowed = f"{LOWEST_RATE} to {HIGHEST_RATE}"
        raise AudioError(f"{where}a sample rate of {rate} is not within {allowed}; resample first.")


def _open_soxr(rate: int) -> Any:
    import soxr  # here, because streams at 16 kHz do not need it and start sooner without

    return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")


def _check_readable(path: Path) -> None:
    try:
        if path.is_dir():
            raise AudioError(f"{path}: this is a folder; name an audio file in it.")
        if path.stat().st_size == 0:
            raise AudioError(f"{path}: the file is empty; record or copy it again.")
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise AudioError(f"{path}: there is no such file; check the name.") from None
    except OSError as error:
        raise AudioError(f"{path}: the file cannot be opened ({error.strerror}); check its permissions.") from None
