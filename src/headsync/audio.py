"""Sound: the first stage of the data path. Files or arrays of any rate and channel count become mono at 16 kHz.

Reading in pieces, mixing down and resampling are all indifferent to how the sound is cut: any cutting gives the same
samples, bit for bit, which is where the promise of the whole recogniser begins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headsync.errors import AudioError

if TYPE_CHECKING:  # who streams samples of 16 kHz needs neither this nor soxr, and starts sooner
    import soundfile

SAMPLE_RATE = 16_000
LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000
LOUDEST = 1e10  # beyond it not even integers that nobody has scaled are sound

FloatArray = npt.NDArray[np.float32]

# Programs that write to a pipe cannot know the length and put a number near a limit of the field instead.
UNKNOWN_LENGTH_BYTES = 0x7FFF_0000
_CUT_CHUNK = re.compile(r"^\s*(?:data|SSND|riff)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE)


def read_audio(path: Path) -> tuple[FloatArray, int]:
    """The whole file as (samples, channels) and its rate."""
    pieces = list(stream_audio(path, piece_seconds=60.0))
    return np.concatenate([samples for samples, _ in pieces]), pieces[0][1]


def stream_audio(path: Path, piece_seconds: float = 0.1) -> Iterator[tuple[FloatArray, int]]:
    """The file piece by piece as (samples, channels) and its rate, in bounded memory; never nothing."""
    import soundfile

    path = Path(path)
    _refuse_unreadable(path)
    with _telling_people(path), soundfile.SoundFile(path) as file:
        _refuse_rate(file.samplerate, f"{path}: ")
        _refuse_truncated(path, file)
        size = max(1, round(piece_seconds * file.samplerate))
        count = 0
        while len(samples := file.read(size, dtype="float32", always_2d=True)):
            if not np.isfinite(samples).all():
                raise AudioError(f"{path}: there are samples that are not numbers (NaN or infinite); record it again.")
            count += len(samples)
            yield samples, file.samplerate
        if count == 0:
            raise AudioError(f"{path}: this file holds no samples; record it again.")
        # The length in an MP3 header may count the encoder's padding; a tenth of a second is beyond any padding.
        if count < file.frames - file.samplerate // 10 and file.frames < UNKNOWN_LENGTH_BYTES:
            raise AudioError(_truncated(path))


def mix_down(samples: npt.ArrayLike) -> FloatArray:
    """Mono float32 from (samples,) or (samples, channels), integers scaled to -1..1, channels averaged."""
    try:
        array = np.asarray(samples)
    except ValueError:  # lists of different lengths
        raise AudioError("these samples are not a table of numbers; pass (samples,) or (samples, channels).") from None
    if array.ndim not in (1, 2):
        raise AudioError(f"samples of shape {array.shape} are not sound; pass (samples,) or (samples, channels).")
    if array.ndim == 2 and not 1 <= array.shape[1] <= 64:
        raise AudioError(f"samples of shape {array.shape} have {array.shape[1]} channels; pass (samples, channels).")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite and is refused below
        scaled = _scale(array)
        mono = scaled if scaled.ndim == 1 else scaled.mean(axis=1, dtype=np.float32)
    loudest = float(np.abs(mono).max(initial=0.0))
    if not math.isfinite(loudest):
        raise AudioError("there are samples that are not numbers (NaN or infinite); check where the sound comes from.")
    if loudest > LOUDEST:
        raise AudioError(f"there are samples as large as {loudest:.0e}, which is no sound; pass numbers from -1 to 1.")
    return np.ascontiguousarray(mono)


class Resampler:
    """A stream of mono sound at some rate, turned into 16 kHz; any cutting of the input gives the same samples."""

    def __init__(self, rate: int) -> None:
        _refuse_rate(rate)
        self.rate = rate
        self._stream = None if rate == SAMPLE_RATE else _resampling(rate)

    def push(self, mono: FloatArray) -> FloatArray:
        """What can already be said at 16 kHz after these samples."""
        if self._stream is None:
            return mono
        return np.asarray(self._stream.resample_chunk(np.ascontiguousarray(mono, dtype=np.float32)), dtype=np.float32)

    def finish(self) -> FloatArray:
        """The rest that waited for samples to come; afterwards the resampler starts anew."""
        nothing = np.zeros(0, dtype=np.float32)
        if self._stream is None:
            return nothing
        rest = np.asarray(self._stream.resample_chunk(nothing, last=True), dtype=np.float32)
        self._stream.clear()
        return rest


def resample(mono: FloatArray, rate: int) -> FloatArray:
    """The whole sound at 16 kHz: the drained stream, so the values are the same."""
    resampler = Resampler(rate)
    return np.concatenate([resampler.push(mono), resampler.finish()])


def _scale(array: npt.NDArray[Any]) -> FloatArray:
    if array.dtype in (np.int16, np.int32):
        return (array / np.float64(-int(np.iinfo(array.dtype).min))).astype(np.float32)
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32, copy=False)
    raise AudioError(f"samples of type {array.dtype} are not understood; pass float32, int16 or int32.")


def _refuse_rate(rate: int, where: str = "") -> None:
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
        raise AudioError(f"a sample rate of {rate!r} is not a whole number; pass it in samples a second, as in 16000.")
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        allowed = f"{LOWEST_RATE} to {HIGHEST_RATE}"
        raise AudioError(f"{where}a sample rate of {rate} is not within {allowed}; resample first.")


def _resampling(rate: int) -> Any:
    import soxr

    return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")


@contextmanager
def _telling_people(path: Path) -> Iterator[None]:
    """Turn what the decoder says into a sentence with the file's name."""
    import soundfile

    try:
        yield
    except soundfile.LibsndfileError as error:
        if "lost sync" in error.error_string:
            raise AudioError(_truncated(path)) from None
        reason = error.error_string.rstrip(". ")
        raise AudioError(f"{path}: this cannot be read as sound ({reason}); convert it to WAV or FLAC.") from None


def _refuse_unreadable(path: Path) -> None:
    try:
        if path.is_dir():
            raise AudioError(f"{path}: this is a folder; name a sound file in it.")
        if path.stat().st_size == 0:
            raise AudioError(f"{path}: this file is empty; record or copy it again.")
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise AudioError(f"{path}: there is no such file; check the name.") from None
    except OSError as error:
        raise AudioError(f"{path}: this file cannot be opened ({error.strerror}); check its permissions.") from None


def _refuse_truncated(path: Path, file: soundfile.SoundFile) -> None:
    """Formats whose header tells a length that the file does not have; the decoder itself would just stop early."""
    for declared, present in _CUT_CHUNK.findall(file.extra_info):
        if int(present) < int(declared) < UNKNOWN_LENGTH_BYTES:
            raise AudioError(_truncated(path))
    if file.format == "OGG" and not _ogg_is_complete(path):
        raise AudioError(_truncated(path))


def _ogg_is_complete(path: Path) -> bool:
    """Whether the last Ogg page is all there and says that the stream ends."""
    largest_page_bytes = 65_307
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * largest_page_bytes))
        tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 27 or len(page) < 27 + page[26]:
        return False
    ends_stream = bool(page[5] & 4)
    return ends_stream and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])


def _truncated(path: Path) -> str:
    return f"{path}: this file is truncated, it ends before its header says; copy or record it again."
