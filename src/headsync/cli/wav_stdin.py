"""WAV from standard input, while it is still being written.

A pipe cannot be rewound, and a program that writes into one does not know the length yet, so the sizes in the header
are upper bounds, and a size of zero or near the limit of the field means unknown. Both
`arecord -r 16000 -f S16_LE | headsync transcribe -` and ffmpeg's `-f wav -` work, without a limit on the length.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from headsync.errors import AudioError
from headsync.frontend.audio import HIGHEST_RATE, LOWEST_RATE, MOST_CHANNELS
from headsync.frontend.decoders import UNKNOWN_LENGTH_BYTES

if TYPE_CHECKING:
    from headsync.frontend.audio import Piece

_EXTENSIBLE = 0xFFFE
_FORMAT_BYTES = 40  # of the longest format chunk
_SKIP_BYTES = 1 << 16
_SUBTYPES = {  # (format tag, bits per sample) -> soundfile's name
    (1, 8): "PCM_U8",
    (1, 16): "PCM_16",
    (1, 24): "PCM_24",
    (1, 32): "PCM_32",
    (3, 32): "FLOAT",
    (3, 64): "DOUBLE",
    (6, 8): "ALAW",
    (7, 8): "ULAW",
}


class _Header(NamedTuple):
    subtype: str
    channels: int
    sample_rate: int
    frame_bytes: int


def stream_wav(source: BinaryIO, piece_seconds: float = 0.1) -> Iterator[Piece]:
    """Yield pieces of a WAV as they arrive."""
    header, left = _read_header(source)
    piece_bytes = max(1, round(piece_seconds * header.sample_rate)) * header.frame_bytes
    empty = True
    while raw := source.read(min(piece_bytes, left)):
        left -= len(raw)
        whole = raw[: len(raw) - len(raw) % header.frame_bytes]  # the writer may have stopped within a sample
        if whole:
            empty = False
            yield _decode(whole, header)
    if empty:
        raise AudioError("standard input: the WAV contains no samples; check the program that writes it.")


def _read_header(source: BinaryIO) -> tuple[_Header, int]:
    """Read up to the first sample; returns the format and the maximum number of bytes that follow."""
    riff = source.read(12)
    if len(riff) < 12 or riff[:4] != b"RIFF" or riff[8:] != b"WAVE":
        raise AudioError(
            "standard input: this is not a WAV; convert it first, for example with ffmpeg -i FILE -f wav -."
        )
    header = None
    while True:
        chunk = source.read(8)
        if len(chunk) < 8:
            raise AudioError("standard input: the WAV ends within its header; check the program that writes it.")
        name, size = chunk[:4], struct.unpack("<I", chunk[4:])[0]
        if name == b"data" and header:
            return header, size if 0 < size < UNKNOWN_LENGTH_BYTES else sys.maxsize
        padded = size + size % 2  # chunks have even sizes
        body = source.read(min(padded, _FORMAT_BYTES))
        if name == b"fmt ":
            header = _parse_format(body)
        _skip(source, padded - len(body))


def _skip(source: BinaryIO, size: int) -> None:
    """Read past bytes in small pieces; the size is a claim of the header."""
    while size > 0 and (found := source.read(min(size, _SKIP_BYTES))):
        size -= len(found)


def _parse_format(body: bytes) -> _Header:
    if len(body) < 16:
        raise AudioError("standard input: the WAV ends within its header; check the program that writes it.")
    tag, channels, sample_rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", body[:16])
    if tag == _EXTENSIBLE and len(body) >= 26:
        tag = struct.unpack("<H", body[24:26])[0]  # the actual tag is the beginning of the GUID
    subtype = _SUBTYPES.get((tag, bits))
    if subtype is None or not channels or frame_bytes != channels * bits // 8:
        raise AudioError(
            f"standard input: WAV format {tag} with {bits} bits is not supported; convert it first, "
            "for example with ffmpeg -i FILE -c:a pcm_s16le -f wav -."
        )
    if channels > MOST_CHANNELS or not LOWEST_RATE <= sample_rate <= HIGHEST_RATE:
        raise AudioError(
            f"standard input: {channels} channels at {sample_rate} Hz are not supported; convert it first, for "
            f"example with ffmpeg -i FILE -ac 1 -ar 16000 -f wav -."
        )
    return _Header(subtype, channels, sample_rate, frame_bytes)


def _decode(raw: bytes, header: _Header) -> Piece:
    import soundfile

    samples, sample_rate = soundfile.read(
        BytesIO(raw),
        dtype="float32",
        always_2d=True,
        samplerate=header.sample_rate,
        channels=header.channels,
        format="RAW",
        subtype=header.subtype,
        endian="LITTLE",
    )
    return samples, sample_rate
