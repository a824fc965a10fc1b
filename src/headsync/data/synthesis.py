"""Machines that speak: strings and sentences in one breath, from the synthesisers flite and espeak-ng.

Digits that were recorded one by one stay single words, however they are joined. A synthesiser runs them together as
people do, only with few voices; so these make some of the training strings, and as many of its sentences, that a voice
says nothing about whether digits are said. Voices of train and dev are apart.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headsync.audio import FloatArray
from headsync.data.takes import read_sound
from headsync.errors import DataError

PROGRAMS = ("flite", "espeak-ng")
WORDS_PER_MINUTE = 165  # of espeak-ng when nothing is asked of it
PITCHES = (25, 75)  # of espeak-ng, on its scale to 99
F0_HERTZ = {"kal16": (90, 130), "awb": (100, 150), "rms": (80, 120), "slt": (150, 220)}  # of flite's voices

_FLITE = {"train": ("kal16", "awb", "slt"), "dev": ("rms",)}
_ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029")
_TIMBRES = ("m1", "m2", "m3", "m4", "m6", "m7", "f1", "f2", "f3", "f4", "f5", "klatt2", "klatt4", "steph", "linda")


class Voice(NamedTuple):
    """A voice of one of the programs."""

    program: str
    name: str

    def __str__(self) -> str:
        return f"{self.program}-{self.name}"


def voices(part: str) -> tuple[Voice, ...]:
    """Who speaks in train or dev; half of train is flite, whose voices were people's."""
    spoken = [Voice("flite", name) for name in _FLITE[part]]
    if part == "dev":
        return tuple(spoken)
    formants = [Voice("espeak-ng", f"{accent}+{timbre}") for accent in _ACCENTS for timbre in _TIMBRES]
    return tuple(spoken * (len(formants) // len(spoken)) + formants)


def check() -> None:
    """Say what is missing before an hour's work rather than in it."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise DataError(f"{program} is not there; install it (apt install {program}), or leave out --voices.")


def say(text: str, voice: Voice, stretch: float, generator: np.random.Generator) -> FloatArray:
    """The text in that voice, `stretch` times as long as it would by itself, at a pitch of its range."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        subprocess.run(_command(text, voice, stretch, path, generator), check=True, capture_output=True)
        return read_sound(path)


def _command(text: str, voice: Voice, stretch: float, path: Path, generator: np.random.Generator) -> Sequence[str]:
    if voice.program == "flite":
        hertz = generator.uniform(*F0_HERTZ[voice.name])
        settings = ["--setf", f"duration_stretch={stretch:.3f}", "--setf", f"int_f0_target_mean={hertz:.1f}"]
        return ["flite", "-voice", voice.name, *settings, "-t", text, "-o", str(path)]
    pitch, rate = generator.integers(*PITCHES), np.clip(round(WORDS_PER_MINUTE / stretch), 80, 400)
    return ["espeak-ng", "-v", voice.name, "-p", str(pitch), "-s", str(rate), "-w", str(path), "--", text]
