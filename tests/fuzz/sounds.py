"""Harnesses of audio: files in every format, SPHERE, FLAC of corpora, and WAV from a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

import audio_files
from fuzz.harness import Harness, scratch, written
from fuzz.wav import wav
from headsync.cli.wav_stdin import stream_wav
from headsync.corpora.audio_files import cut_segment, decoded_seconds
from headsync.corpora.preparation import CorpusEntry
from headsync.corpora.wsj import read_sphere
from headsync.frontend.audio import HIGHEST_RATE, LARGEST_FLOAT, LOWEST_RATE, MOST_CHANNELS, mix_down, stream_audio
from sphere_files import write_sphere

MOST_SECONDS = 600  # a file of a few kilobytes may hold long silence; its decoding is stopped here


def decode_file(data: bytes) -> None:
    """Samples that a file gives can be recognised: mono after mixing, within bounds, at an accepted rate."""
    seconds = 0.0
    for samples, rate in stream_audio(written("audio", data), 1.0):
        assert LOWEST_RATE <= rate <= HIGHEST_RATE
        assert 1 <= samples.shape[1] <= MOST_CHANNELS
        assert np.abs(mix_down(samples)).max(initial=0) <= LARGEST_FLOAT
        seconds += len(samples) / rate
        if seconds > MOST_SECONDS:
            break


def check_recording(data: bytes) -> None:
    """A recording of a corpus: the whole of it, and a segment."""
    path = written("recording.flac", data)
    seconds = decoded_seconds(path, None)
    cut_segment(scratch() / "cut.flac", CorpusEntry("id", path, "text", "", (0.0, min(0.05, seconds))))


def decode_sphere(data: bytes) -> None:
    read_sphere(written("a.wv1", data), 16_000)


def decode_pipe(data: bytes) -> None:
    """A pipe never gives more than was asked for."""
    for samples, rate in stream_wav(io.BytesIO(data)):
        assert LOWEST_RATE <= rate <= HIGHEST_RATE
        assert 1 <= samples.shape[1] <= MOST_CHANNELS


def _encoded(*formats: str) -> list[bytes]:
    tone = (0.3 * np.sin(np.arange(2400) / 9)).astype(np.float32)[:, None]
    return [audio_files.encode(scratch() / f"tone.{form}", tone, 16_000).read_bytes() for form in formats]


def _wav_seeds() -> list[bytes]:
    forms = [wav(400, subtype=form) for form in ((1, 8), (1, 16), (1, 24), (3, 32), (6, 8), (7, 8))]
    return [*forms, wav(200, 48_000, channels=2)]


def _container_seeds() -> list[bytes]:
    import soundfile

    found = []
    for form in ("AIFF", "AU", "CAF", "W64", "RF64", "NIST"):
        file = io.BytesIO()
        soundfile.write(file, np.linspace(-0.5, 0.5, 300, dtype=np.float32), 16_000, format=form, subtype="PCM_16")
        found.append(file.getvalue())
    return [*found, *_wav_seeds()]


def _sphere_seeds() -> list[bytes]:
    samples, found = (np.arange(700) % 90 * 11).astype(np.int16), []
    for shorten in (False, True):
        path = Path(scratch() / "seed.wv1")
        write_sphere(path, samples, shorten=shorten)
        found.append(path.read_bytes())
    return found


MARKS = [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\xfe\xff", b"fmt ", *b"RIFF WAVE data LIST fact".split()]
CONTAINER_MARKS = [b"\x1a\x45\xdf\xa3", *b"ftyp moov OggS ID3 Xing #EXTM3U".split()]
FORMATS = ("mp3", "m4a", "webm", "opus", "ogg", "aac")
SOUNDS = {
    "wav-pipe": Harness(decode_pipe, _wav_seeds, MARKS, native=True),
    "audio-pcm": Harness(decode_file, _container_seeds, [*MARKS, *b"FORM SSND COMM caff .snd".split()], native=True),
    "audio-flac": Harness(check_recording, lambda: _encoded("flac"), [b"fLaC", b"\xff\xf8"], native=True),
    **{
        f"audio-{name}": Harness(
            decode_file, lambda name=name: _encoded(name), CONTAINER_MARKS, native=True, max_bytes=8192
        )
        for name in FORMATS
    },
    "sphere": Harness(
        decode_sphere,
        _sphere_seeds,
        [b"sample_count -i ", b"sample_rate -i ", b"channel_count -i ", b"ajkg\x02", b"end_head", b"ulaw"],
        native=True,
    ),
}
