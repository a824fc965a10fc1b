"""Synthetic sources, and the digit sets made from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from digit_corpus import find_takes, read_kaldi, split_speakers, without_digits
from digit_strings import Sources, StringMaker
from miniature import FEMALE, SENTENCES, SMALL, say
from prepare_digits import prepare


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight speakers, one of them at 48 kHz and as WAV like the original."""
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
def prepared(source: Path, speech: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    prepare(source, out, strings=SMALL, speech=speech)
    return out


@pytest.fixture(scope="session")
def maker(source: Path, speech: Path) -> StringMaker:
    takes, sexes = find_takes(source)
    spoken = {part: read_kaldi(speech, part) for part in ("train", "test")}
    others = {part: without_digits(spoken, part) for part in ("train", "dev", "test")}
    return StringMaker(Sources(1, takes, split_speakers(sexes), others))
