"""NIST SPHERE files: the form of the LDC's discs, plain or compressed with shorten; decoded by FFmpeg (PyAV)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headsync.data.corpus import DAMAGED, UNREADABLE, UnusableError
from headsync.data.listening import refuse_absent, refuse_rate
from headsync.errors import DataError

Samples = npt.NDArray[np.int16]

_FIELD = re.compile(r"^(\w+) -(?:i|r|s\d+) (.*)$", re.MULTILINE)


def read_sphere(path: Path, rate: int) -> Samples:
    """All samples of a file with one channel; they must be as many as the header says and fit its checksum."""
    refuse_absent(path)
    header = _header(path)
    refuse_rate(path, header.get("sample_rate", 0), rate)
    samples = _decode(path)
    count = header.get("sample_count", len(samples))
    if len(samples) != count:
        raise UnusableError(UNREADABLE, f"{path}: {len(samples)} of {count} samples are there; fetch it again.")
    checksum = header.get("sample_checksum")
    if checksum is not None and checksum % 65_536 != int(samples.astype(np.int64).sum()) % 65_536:
        raise UnusableError(DAMAGED, f"{path}: the samples do not fit the checksum in the header; fetch it again.")
    return samples


def _header(path: Path) -> dict[str, int]:
    """The fields of the header that are whole numbers."""
    with path.open("rb") as file:
        text = file.read(1_024).decode("latin-1")
    if not text.startswith("NIST_1A"):
        raise UnusableError(UNREADABLE, f"{path}: this is not a SPHERE file; fetch it again.")
    fields = _FIELD.findall(text.partition("end_head")[0])
    return {name: int(value) for name, value in fields if re.fullmatch(r"-?\d+", value.strip())}


def _decode(path: Path) -> Samples:
    try:
        import av
    except ModuleNotFoundError:
        raise DataError("SPHERE files need the package av, which is not installed: pip install av.") from None
    pieces = [np.zeros(0, np.int16)]
    try:
        with av.open(str(path), format="nistsphere") as file:
            for frame in file.decode(audio=0):
                pieces.append(frame.to_ndarray().reshape(-1).astype(np.int16))
    except av.FFmpegError as error:
        reason = error.strerror or type(error).__name__
        raise UnusableError(UNREADABLE, f"{path}: this cannot be decoded ({reason}); fetch it again.") from None
    return np.concatenate(pieces)
