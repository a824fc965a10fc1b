"""Hearing a recording to its end: length, rate and checksum, or the reason why it cannot be used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import soundfile

from headsync.audio import stream_audio
from headsync.data.corpus import DAMAGED, EMPTY_FILE, MISSING, RATE, Entry, Heard, UnusableError

_STREAMINFO_END = 42  # a FLAC file begins with its magic word and one block, the last 16 bytes of which are a checksum


def hear_at(rate: int | None, entry: Entry) -> Heard:
    """Hear a whole recording, which should have this rate; none: any rate."""
    return Heard(entry.audio, listen(entry.audio, rate))


def listen(path: Path, rate: int | None) -> float:
    """The seconds of a recording that is right from its first to its last sample."""
    refuse_absent(path)
    checksum = _flac_checksum(path)
    digest, count, found = hashlib.md5(usedforsecurity=False), 0, 0
    for samples, found in stream_audio(path, piece_seconds=60.0):
        refuse_rate(path, found, rate)
        count += len(samples)
        if checksum:
            digest.update(np.round(samples * 32768.0).astype("<i2").tobytes())
    if checksum and digest.digest() != checksum:
        raise UnusableError(DAMAGED, f"{path}: the samples do not fit the checksum in the file; fetch it again.")
    return count / found


def refuse_absent(path: Path) -> None:
    """Tell a file that is missing or empty from one that is damaged."""
    if not path.is_file():
        raise UnusableError(MISSING, f"{path}: there is no such file; fetch it again.")
    if path.stat().st_size == 0:
        raise UnusableError(EMPTY_FILE, f"{path}: this file is empty; fetch it again.")


def refuse_rate(path: Path, found: int, wanted: int | None) -> None:
    if wanted is not None and found != wanted:
        raise UnusableError(RATE, f"{path}: the sample rate is {found} and should be {wanted}; fetch it again.")


def _flac_checksum(path: Path) -> bytes:
    """The MD5 of the samples of a 16-bit FLAC file; nothing where there is none."""
    with path.open("rb") as file:
        head = file.read(_STREAMINFO_END)
    if len(head) < _STREAMINFO_END or not head.startswith(b"fLaC") or not any(head[-16:]):
        return b""
    return head[-16:] if _is_16_bit(path) else b""


def _is_16_bit(path: Path) -> bool:
    try:
        return bool(soundfile.info(path).subtype == "PCM_16")
    except soundfile.LibsndfileError:
        return False  # the decoder will say what is wrong
