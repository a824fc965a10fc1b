"""Machines that speak: their voices are apart, what is asked of them is what they are told, and they are heard."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from headsync.audio import SAMPLE_RATE
from headsync.data import synthesis
from headsync.data.audiomnist import prepare
from headsync.data.synthesis import Voice, say, voices
from headsync.errors import DataError

missing = [program for program in synthesis.PROGRAMS if shutil.which(program) is None]
speaking = pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed")


def seeded() -> np.random.Generator:
    return np.random.default_rng(3)


def test_voices_of_train_and_dev_are_apart_and_half_of_train_were_peoples() -> None:
    train, dev = voices("train"), voices("dev")
    assert not set(train) & set(dev)
    assert sum(voice.program == "flite" for voice in train) == len(train) // 2


@pytest.mark.parametrize(
    ("voice", "wanted"),
    [
        (Voice("flite", "awb"), ["flite", "-voice", "awb", "--setf", "duration_stretch=1.500"]),
        (Voice("espeak-ng", "en-us+f3"), ["espeak-ng", "-v", "en-us+f3"]),
    ],
)
def test_the_programs_are_told_voice_text_and_tempo(voice: Voice, wanted: list[str]) -> None:
    command = list(synthesis._command("one two", voice, 1.5, Path("said.wav"), seeded()))
    assert command[: len(wanted)] == wanted
    assert {"one two", "said.wav"} < set(command)
    if voice.program == "espeak-ng":
        assert command[command.index("-s") + 1] == "110"


@speaking
@pytest.mark.parametrize("voice", [Voice("flite", "slt"), Voice("espeak-ng", "en-gb-scotland+m3")])
def test_what_is_said_slowly_takes_longer_and_the_same_seed_says_the_same(voice: Voice) -> None:
    once, again, slowly = (say("three one four", voice, stretch, seeded()) for stretch in (1.0, 1.0, 1.6))
    assert np.array_equal(once, again)
    assert 0.5 < len(once) / SAMPLE_RATE < 3.0
    assert len(slowly) > 1.2 * len(once)
    assert np.abs(once).max() > 0.01


def test_a_missing_program_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"flite is not there; install it .* or leave out --voices"):
        synthesis.check()


def test_voices_need_sentences_to_speak(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name a corpus of it with --speech"):
        prepare(tmp_path, tmp_path / "out", voices=True)
