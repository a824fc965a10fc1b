"""Audio files of corpora: recordings decoded to their end, with their length or the reason why they cannot be used, and
FLAC files of whole recordings and of segments.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from headsync._atomic_write import in_one_move
from headsync.corpora.preparation import CheckedAudio, CorpusEntry, ProblemKind, UnusableError
from headsync.frontend.audio import FloatArray, mix_down, stream_audio

LONGEST_SECONDS = 1e9  # of a recording
_SEEKABLE = (".wav", ".flac")
_STREAMINFO_END = 42  # bytes of the FLAC marker and the STREAMINFO block, which ends with an MD5 of the samples


def check_at_rate(rate: int | None, entry: CorpusEntry) -> CheckedAudio:
    """Check a whole recording of this sample rate; None accepts any rate."""
    return CheckedAudio(entry.audio, decoded_seconds(entry.audio, rate))


def decoded_seconds(path: Path, rate: int | None) -> float:
    """The length of a recording that decodes without error from its first to its last sample."""
    refuse_absent(path)
    checksum = _flac_checksum(path)
    digest, count, found = hashlib.md5(usedforsecurity=False), 0, 0
    for samples, found in stream_audio(path, piece_seconds=60.0):
        refuse_rate(path, found, rate)
        count += len(samples)
        if checksum:
            digest.update(np.round(samples * 32768.0).astype("<i2").tobytes())
    if checksum and digest.digest() != checksum:
        what = f"{path}: the samples do not match the checksum in the file; download it again."
        raise UnusableError(ProblemKind.WRONG_CHECKSUM, what)
    return count / found


def refuse_absent(path: Path) -> None:
    """Distinguish a missing or empty file from a damaged one."""
    if not path.is_file():
        raise UnusableError(ProblemKind.MISSING_AUDIO, f"{path}: no such file; download it again.")
    if path.stat().st_size == 0:
        raise UnusableError(ProblemKind.EMPTY_FILE, f"{path}: this file is empty; download it again.")


def refuse_rate(path: Path, found: int, wanted: int | None) -> None:
    if wanted is not None and found != wanted:
        what = f"{path}: the sample rate is {found}, expected {wanted}; download it again."
        raise UnusableError(ProblemKind.WRONG_SAMPLE_RATE, what)


def _flac_checksum(path: Path) -> bytes:
    """The MD5 of the samples of a 16-bit FLAC file; empty if the file has none."""
    with path.open("rb") as file:
        head = file.read(_STREAMINFO_END)
    if len(head) < _STREAMINFO_END or not head.startswith(b"fLaC") or not any(head[-16:]):
        return b""
    return head[-16:] if _is_16_bit(path) else b""


def _is_16_bit(path: Path) -> bool:
    try:
        return bool(soundfile.info(path).subtype == "PCM_16")
    except soundfile.LibsndfileError:
        return False  # the decoder reports the error


def write_flac(path: Path, samples: FloatArray | npt.NDArray[np.int16], rate: int) -> CheckedAudio:
    """Write 16-bit FLAC in one move, and create the folder; a full disk is an OSError that names the file."""
    encoded = io.BytesIO()  # libsndfile does not report a full disk as such
    soundfile.write(encoded, samples, rate, format="FLAC", subtype="PCM_16")
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(path) as unfinished:
        unfinished.write_bytes(encoded.getvalue())
    return CheckedAudio(path.absolute(), len(samples) / rate)


def cut_segment(path: Path, entry: CorpusEntry) -> CheckedAudio:
    """Write the span of an entry to `path`, mixed down to mono."""
    assert entry.span is not None
    refuse_absent(entry.audio)
    start, end = entry.span
    if not 0 <= start < end < LONGEST_SECONDS:  # also refuses numbers that are not finite
        raise UnusableError(ProblemKind.UNREADABLE, f"{entry.audio}: {start} to {end} s is not a span of time.")
    read = _seek_span if entry.audio.suffix.lower() in _SEEKABLE else _stream_span
    samples, rate, total = read(entry.audio, start, end)
    if round(end * rate) > total:
        what = f"{entry.audio}: {start} to {end} s is not within its {total / rate:.2f} s."
        raise UnusableError(ProblemKind.UNREADABLE, what)
    if len(samples) < round(end * rate) - round(start * rate):
        raise UnusableError(ProblemKind.UNREADABLE, f"{entry.audio}: this file is truncated; download it again.")
    return write_flac(path, samples, rate)


def _seek_span(path: Path, start: float, end: float) -> tuple[FloatArray, int, int]:
    """The samples of a span, their rate, and the number of samples of the file."""
    try:
        with soundfile.SoundFile(path) as file:
            first, last = (min(max(0, round(time * file.samplerate)), file.frames) for time in (start, end))
            file.seek(first)
            samples = file.read(max(0, last - first), dtype="float32", always_2d=True)
            return mix_down(samples), file.samplerate, file.frames
    except soundfile.LibsndfileError as error:
        raise UnusableError(ProblemKind.UNREADABLE, f"{path}: cannot be decoded ({error.error_string})") from None


def _stream_span(path: Path, start: float, end: float) -> tuple[FloatArray, int, int]:
    """The same for formats without exact seeking; the file is counted up to the end of the span only."""
    kept, count, rate = [np.zeros(0, np.float32)], 0, 1
    for piece, rate in stream_audio(path, piece_seconds=10.0):
        first, last = round(start * rate) - count, round(end * rate) - count
        if last > 0 and first < len(piece):
            kept.append(mix_down(piece[max(0, first) : last]))
        count += len(piece)
        if count >= round(end * rate):
            break
    return np.concatenate(kept), rate, count
