"""NIST SPHERE files, plain or compressed with shorten; decoded by FFmpeg (PyAV)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headsync.corpora.preparation import ProblemKind, UnusableError
from headsync.corpora.verify_audio import refuse_absent, refuse_rate

Samples = npt.NDArray[np.int16]

_FIELD = re.compile(r"^(\w+) -(?:i|r|s\d+) (.*)$", re.MULTILINE)


def read_sphere(path: Path, rate: int) -> Samples:
    """All samples of a file with one channel; their number and checksum must match the header."""
    refuse_absent(path)
    header = _header(path)
    refuse_rate(path, header.get("sample_rate", 0), rate)
    samples = _decode(path)
    count = header.get("sample_count", len(samples))
    if len(samples) != count:
        raise UnusableError(
            ProblemKind.UNREADABLE, f"{path}: found {len(samples)} of {count} samples; download it again."
        )
    checksum = header.get("sample_checksum")
    if checksum is not None and checksum % 65_536 != int(samples.astype(np.int64).sum()) % 65_536:
        raise UnusableError(
            ProblemKind.WRONG_CHECKSUM,
            f"{path}: the samples do not match the checksum in the header; download it again.",
        )
    return samples


def _header(path: Path) -> dict[str, int]:
    """The integer fields of the header."""
    with path.open("rb") as file:
        text = file.read(1_024).decode("latin-1")
    if not text.startswith("NIST_1A"):
        raise UnusableError(ProblemKind.UNREADABLE, f"{path}: not a SPHERE file; download it again.")
    fields = _FIELD.findall(text.partition("end_head")[0])
    return {name: int(value) for name, value in fields if re.fullmatch(r"-?\d+", value.strip())}


def _decode(path: Path) -> Samples:
    import av

    pieces = [np.zeros(0, np.int16)]
    try:
        with av.open(str(path), format="nistsphere", metadata_errors="ignore") as file:
            for frame in file.decode(audio=0):
                pieces.append(frame.to_ndarray().reshape(-1).astype(np.int16))
    except av.FFmpegError as error:
        reason = error.strerror or type(error).__name__
        raise UnusableError(
            ProblemKind.UNREADABLE, f"{path}: cannot be decoded ({reason}); download it again."
        ) from None
    return np.concatenate(pieces)
