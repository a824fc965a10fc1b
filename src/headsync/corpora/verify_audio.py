"""Decoding a recording to its end: its length, or the reason why it cannot be used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import soundfile

from headsync.corpora.preparation import CheckedAudio, CorpusEntry, ProblemKind, UnusableError
from headsync.frontend.audio import stream_audio

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
        raise UnusableError(
            ProblemKind.WRONG_CHECKSUM, f"{path}: the samples do not match the checksum in the file; download it again."
        )
    return count / found


def refuse_absent(path: Path) -> None:
    """Distinguish a missing or empty file from a damaged one."""
    if not path.is_file():
        raise UnusableError(ProblemKind.MISSING_AUDIO, f"{path}: no such file; download it again.")
    if path.stat().st_size == 0:
        raise UnusableError(ProblemKind.EMPTY_FILE, f"{path}: this file is empty; download it again.")


def refuse_rate(path: Path, found: int, wanted: int | None) -> None:
    if wanted is not None and found != wanted:
        raise UnusableError(
            ProblemKind.WRONG_SAMPLE_RATE, f"{path}: the sample rate is {found}, expected {wanted}; download it again."
        )


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
