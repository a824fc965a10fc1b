"""Decoders: an audio file becomes blocks of samples, in order and without seeking.

libsndfile reads PCM containers (WAV, AIFF, W64, CAF, AU) and FLAC. FFmpeg reads all other formats: MP3, M4A, MP4, WebM,
Ogg, Opus, AAC and WMA. The size of a block is the decoder's own choice, never the reader's: this makes the samples
independent of the pieces in which a file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headsync.errors import AudioError

if TYPE_CHECKING:
    import av
    import soundfile

AudioBlock: TypeAlias = tuple[npt.NDArray[np.float32], int]  # samples (n, channels) and their rate

# Programs that write to a pipe cannot know the length and write a number near the limit of the field instead.
UNKNOWN_LENGTH_BYTES = 0x7FFF_0000
_BLOCK_SAMPLES = 1 << 16
_TOLERANCE_SECONDS = 0.1  # a declared length may include the encoder's padding
_SNDFILE_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"FORM", b"riff", b"fLaC", b".snd", b"caff", b"NIST")
_SHORT_CHUNK = re.compile(r"^\s*(?:data|SSND|riff)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE)
# Containers only. FFmpeg also reads playlists, through which an uploaded file could open other files and addresses.
_FFMPEG_OPTIONS = {"format_whitelist": "aac,ac3,amr,asf,avi,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,wv"}


def decode(path: Path) -> Iterator[AudioBlock]:
    """The samples of a file, block by block."""
    with path.open("rb") as file:
        head = file.read(12)
    if head.startswith(_SNDFILE_MAGIC) and head[8:] != b"AVI ":
        return _decode_sndfile(path)
    if head.startswith(b"OggS") and not _ogg_is_complete(path):
        raise _truncated(path)
    return _decode_ffmpeg(path)


def _truncated(path: Path) -> AudioError:
    return AudioError(f"{path}: the file is truncated or damaged; copy or record it again.")


def _undecodable(path: Path, reason: str) -> AudioError:
    reason = reason.rstrip(". ")
    return AudioError(f"{path}: cannot be decoded as audio ({reason}); copy it again, or convert it to WAV or FLAC.")


def _decode_sndfile(path: Path) -> Iterator[AudioBlock]:
    import soundfile

    try:
        with soundfile.SoundFile(path) as file:
            _check_chunks(path, file)
            count = 0
            while len(samples := file.read(_BLOCK_SAMPLES, dtype="float32", always_2d=True)):
                count += len(samples)
                yield samples, file.samplerate
            if count < file.frames < UNKNOWN_LENGTH_BYTES:
                raise _truncated(path)
    except soundfile.LibsndfileError as error:
        if "lost sync" in error.error_string:
            raise _truncated(path) from None
        raise _undecodable(path, error.error_string) from None


def _check_chunks(path: Path, file: soundfile.SoundFile) -> None:
    """Compare the chunk sizes in the header with the file; libsndfile itself stops early without an error."""
    for declared, present in _SHORT_CHUNK.findall(file.extra_info):
        if int(present) < int(declared) < UNKNOWN_LENGTH_BYTES:
            raise _truncated(path)


def _decode_ffmpeg(path: Path) -> Iterator[AudioBlock]:
    import av

    try:
        with (
            path.open("rb") as file,
            av.open(file, "r", options=_FFMPEG_OPTIONS, metadata_errors="ignore") as container,
        ):
            stream = container.streams.best("audio")
            if stream is None:
                raise AudioError(f"{path}: the file has no audio track; choose another file.")
            declared, seconds, form = _declared_seconds(container, stream), 0.0, None
            for frame in _frames(path, container, stream):
                form = form or (frame.sample_rate, frame.layout.nb_channels)
                if form != (frame.sample_rate, frame.layout.nb_channels):
                    raise AudioError(f"{path}: the sample rate or channels change within the file; convert it to WAV.")
                seconds += frame.samples / frame.sample_rate
                yield _samples(frame), frame.sample_rate
            if seconds and declared is not None and seconds < declared - _TOLERANCE_SECONDS:
                raise _truncated(path)
    except av.FFmpegError as error:
        raise _undecodable(path, error.strerror or type(error).__name__) from None


def _frames(path: Path, container: av.container.InputContainer, stream: Any) -> Iterator[av.AudioFrame]:
    """Every frame. Undecodable data after the last frame is ignored (tags, padding); anywhere else it is an error."""
    import av

    damaged = False
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            damaged = True
            continue
        for frame in frames:
            if damaged:
                raise _truncated(path)
            yield frame


def _declared_seconds(container: av.container.InputContainer, stream: Any) -> float | None:
    """The length that the header declares; None where there is none, or FFmpeg's value is an estimate."""
    name = container.format.name
    if name == "mp3" and not stream.start_time:  # no LAME header: estimated from the bit rate
        return None
    if stream.duration and ("mov" in name or name in ("mp3", "ogg")):
        return float(stream.duration * stream.time_base)
    if "matroska" in name and container.duration and len(container.streams) == 1:
        return float(container.duration / 1_000_000)
    return None


def _samples(frame: av.AudioFrame) -> npt.NDArray[np.float32]:
    """A frame as (samples, channels) between -1 and 1."""
    values = frame.to_ndarray()
    table = values.T if frame.format.is_planar else values.reshape(frame.samples, -1)
    if table.dtype == np.uint8:
        table = table.astype(np.float64) - 128.0
    scale = 2.0 ** (8 * values.dtype.itemsize - 1) if values.dtype.kind in "iu" else 1.0
    return np.ascontiguousarray(table / scale, dtype=np.float32)


def _ogg_is_complete(path: Path) -> bool:
    """Whether the last Ogg page is complete and marks the end of its stream."""
    largest_page_bytes = 65_307
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * largest_page_bytes))
        tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 27 or len(page) < 27 + page[26]:
        return False
    ends_stream = bool(page[5] & 4)
    return ends_stream and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
