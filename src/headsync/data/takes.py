"""What the studio works with and what leaves it: plan, takes, other speech, finished recordings in their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile

from headsync.audio import SAMPLE_RATE, FloatArray, mix_down, read_audio, resample
from headsync.data import augment
from headsync.data.kaldi import Spoken
from headsync.data.manifest import Utterance
from headsync.writing import in_one_move

MARGIN_SAMPLES = 60 * SAMPLE_RATE // 1000

Takes = dict[str, tuple[tuple[Path, ...], ...]]  # speaker -> digit -> recordings


class Made(NamedTuple):
    """A recording as it comes out of the studio."""

    samples: FloatArray
    text: str
    speaker: str


@dataclass(frozen=True)
class Plan:
    """All that decides what the recordings will be; small enough to hand to every worker."""

    out: Path
    seed: int
    takes: Takes
    speakers: dict[str, tuple[str, ...]]  # train, dev, test
    others: dict[str, tuple[Spoken, ...]]  # train, dev, test: speech without digits
    told: tuple[Spoken, ...] = ()  # train: speech whose every word may be told
    among: tuple[Spoken, ...] = ()  # train: sentences with digits in them, which are their text
    foreign: tuple[Spoken, ...] = ()  # train: speech without digits from further corpora

    def voices(self, part: str) -> tuple[str, ...]:
        return self.speakers[part.split("-")[0]]

    def speech(self, part: str) -> tuple[Spoken, ...]:
        return self.foreign if part == "train-foreign" else self.others[part.split("-")[0]]


class Take(NamedTuple):
    """One recorded digit with a margin, and where the speech in it begins and ends."""

    samples: npt.NDArray[np.int16]
    first: int
    end: int


def read_take(path: Path) -> Take:
    """A recorded digit at 16 kHz, without most of the silence around it."""
    samples = read_sound(path)
    first, end = augment.trim(samples)
    begin = max(0, first - MARGIN_SAMPLES)
    kept = samples[begin : end + MARGIN_SAMPLES]
    return Take(as_int16(kept), first - begin, end - begin)


def read_trimmed(path: Path) -> npt.NDArray[np.int16]:
    """An utterance of other speech at 16 kHz, without the silence around it."""
    samples = read_sound(path)
    first, end = augment.trim(samples)
    return as_int16(samples[first:end])


def read_sound(path: Path) -> FloatArray:
    samples, rate = read_audio(path)
    return resample(mix_down(samples), rate)


def store(path: Path, made: Made) -> None:
    """Write in one move; text and speaker go into the file itself, so that a run can be taken up again."""
    written = (SAMPLE_RATE, 1, "PCM_16")
    with in_one_move(path) as unfinished, soundfile.SoundFile(unfinished, "w", *written, format="FLAC") as file:
        if made.text:
            file.title = made.text
        if made.speaker:
            file.artist = made.speaker
        file.write(as_int16(made.samples))


def stored(path: Path, name: str) -> Utterance | None:
    """What an earlier run left there; None where that is nothing, or damaged."""
    try:
        with soundfile.SoundFile(path) as file:
            return Utterance(name, path, file.title, file.frames / SAMPLE_RATE, file.artist)
    except soundfile.LibsndfileError:
        return None


def as_float(samples: npt.NDArray[np.int16]) -> FloatArray:
    return samples.astype(np.float32) / np.float32(32768.0)


def as_int16(samples: FloatArray) -> npt.NDArray[np.int16]:
    return np.clip(np.round(samples * 32768.0), -32768, 32767).astype(np.int16)
