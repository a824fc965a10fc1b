"""WAV from a pipe, while it is still being written."""

from __future__ import annotations

import io
import os
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.cli.wav_stdin import stream_wav
from headsync.errors import AudioError


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_a_piped_wav_has_the_samples_of_the_file(tmp_path: Path, subtype: str, kind: str) -> None:
    path = tmp_path / "a.wav"
    sound = np.random.default_rng(0).uniform(-0.9, 0.9, size=(1000, 3)).astype(np.float32)
    soundfile.write(path, sound, 11_025, subtype=subtype, format=kind)
    pieces = list(stream_wav(io.BytesIO(path.read_bytes()), 0.01))
    assert {rate for _, rate in pieces} == {11_025}
    assert len(pieces) > 5
    expected, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_array_equal(np.concatenate([samples for samples, _ in pieces]), expected)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x00\x00\x00\x00"])
def test_a_wav_of_unknown_length_is_read_to_its_end(wav: Path, size: bytes) -> None:
    raw = bytearray(wav.read_bytes())
    data = raw.index(b"data") + 4
    raw[4:8] = raw[data : data + 4] = size
    assert sum(len(samples) for samples, _ in stream_wav(io.BytesIO(bytes(raw)))) == 16_000


def test_bytes_after_the_samples_are_ignored(wav: Path) -> None:
    raw = wav.read_bytes() + b"LIST" + struct.pack("<I", 4) + b"abcd"
    assert sum(len(samples) for samples, _ in stream_wav(io.BytesIO(raw))) == 16_000


def test_samples_arrive_while_the_pipe_is_open() -> None:
    reader, writer = os.pipe()
    header = io.BytesIO()
    with wave.open(header, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16_000))
    os.write(writer, header.getvalue()[: 44 + 1600])
    with os.fdopen(reader, "rb") as source:
        samples, _ = next(iter(stream_wav(source, 0.1)))
        assert samples.shape == (800, 1)
        os.close(writer)


@pytest.mark.parametrize("size", [0, 3, 11, 14, 30, 40, 44])
def test_a_wav_that_ends_in_its_header_is_refused(wav: Path, size: int) -> None:
    with pytest.raises(AudioError, match="standard input"):
        list(stream_wav(io.BytesIO(wav.read_bytes()[:size])))


def test_an_unsupported_wav_format_is_refused(wav: Path) -> None:
    raw = bytearray(wav.read_bytes())
    raw[20:22] = struct.pack("<H", 85)  # MP3 in WAV
    with pytest.raises(AudioError, match="format 85"):
        list(stream_wav(io.BytesIO(bytes(raw))))
