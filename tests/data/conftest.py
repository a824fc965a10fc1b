"""Recordings that are made here, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headsync.data import audiomnist
from headsync.data.audiomnist import prepare, split_speakers
from headsync.data.kaldi import read_kaldi
from headsync.data.studio import Studio
from headsync.data.takes import Plan
from miniature import FEMALE, SENTENCES, SMALL, say


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight speakers, one of them at 48 kHz and as WAV, as the original is."""
    root = tmp_path_factory.mktemp("AudioMNIST")
    for number in range(1, 9):
        rate, ending = (48_000, "wav") if number == 1 else (16_000, "flac")
        for digit in range(10):
            path = root / "data" / f"{number:02d}" / f"{digit}_{number:02d}_0.{ending}"
            say(path, 200 + 100 * digit, 0.25 + 0.02 * digit, rate, seed=10 * number + digit)
    sexes = {f"{n:02d}": {"gender": "female" if f"{n:02d}" in FEMALE else "male"} for n in range(1, 9)}
    (root / "data" / "audioMNIST_meta.txt").write_text(json.dumps(sexes))
    return root


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("speech")
    for part, sentences in SENTENCES.items():
        (root / part).mkdir()
        rows = {"text": "", "wav.scp": "", "utt2spk": ""}
        for seed, (name, speaker, text) in enumerate(sentences):
            say(root / "WAVE" / f"{name}.wav", 150 + 40 * seed, 1.0, 16_000, seed)
            rows["text"] += f"{name}\t{text}\n"
            rows["wav.scp"] += f"{name}\tWAVE/{name}.wav\n"
            rows["utt2spk"] += f"{name} {speaker}\n"
        for name, content in rows.items():
            (root / part / name).write_text(content)
    return root


@pytest.fixture(scope="session")
def made(source: Path, speech: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    prepare(source, out, strings=SMALL, speech=speech)
    return out


@pytest.fixture(scope="session")
def studio(source: Path, speech: Path, tmp_path_factory: pytest.TempPathFactory) -> Studio:
    takes, sexes = audiomnist.find_takes(source)
    spoken = {part: read_kaldi(speech, part) for part in ("train", "test")}
    others = {part: audiomnist.without_digits(spoken, part) for part in ("train", "dev", "test")}
    return Studio(Plan(tmp_path_factory.mktemp("studio"), 1, takes, split_speakers(sexes), others))
