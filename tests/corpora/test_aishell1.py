"""AIShell-1: texts without spaces, parts and speakers as published, and every damage named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.corpora.aishell1 import EXPECTED, prepare
from headsync.corpora.manifest import read_manifest
from headsync.errors import DataError

TEXTS = {
    "BAC009S0002W0001": "设定 二十九 度",
    "BAC009S0002W0002": "设定 三十度",
    "BAC009S0724W0001": "嗯 变温",
    "BAC009S0764W0001": "两 度",
}
PARTS = {"S0002": "train", "S0724": "dev", "S0764": "test"}


def say(path: Path, seed: int, rate: int = 16_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.default_rng(seed).normal(0, 0.1, rate // 2), rate, subtype="PCM_16")


def wav(corpus: Path, name: str) -> Path:
    speaker = name[6:11]
    return corpus / "wav" / PARTS[speaker] / speaker / f"{name}.wav"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "data_aishell"
    for seed, name in enumerate(TEXTS):
        say(wav(root, name), seed)
    write_list(root, *(f"{name} {text}" for name, text in TEXTS.items()))
    return root


def write_list(root: Path, *lines: str) -> None:
    (root / "transcript").mkdir(exist_ok=True)
    (root / "transcript" / "aishell_transcript_v0.8.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def named(out: Path) -> set[tuple[str, str]]:
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {(problem["kind"], problem["name"]) for problem in report["problems"]}


def test_every_part_gets_its_manifest_without_spaces(corpus: Path, tmp_path: Path) -> None:
    report = prepare(corpus.parent, tmp_path / "out")
    found = {part: [(one.text, one.speaker) for one in read_manifest(tmp_path / "out" / f"{part}.jsonl")]
             for part in EXPECTED}  # fmt: skip
    assert found == {
        "train": [("设定二十九度", "S0002"), ("设定三十度", "S0002")],
        "dev": [("嗯变温", "S0724")],
        "test": [("两度", "S0764")],
    }
    assert not report.problems


def test_the_classes_are_the_characters_of_train_and_unk(corpus: Path, tmp_path: Path) -> None:
    report = prepare(corpus, tmp_path / "out")
    assert report.classes is not None
    assert (report.classes.found, report.classes.published) == (len(set("设定二十九度三")) + 1, 4_231)
    assert "only 2 of 120098 utterances and 1 of 340 speakers of train are present" in report.explanation


def test_all_damage_is_reported_and_the_rest_is_prepared(corpus: Path, tmp_path: Path) -> None:
    names = {n: f"BAC009S0002W01{n:02d}" for n in range(8)}
    for n, name in names.items():
        say(wav(corpus, name), n, rate=8_000 if n == 0 else 16_000)
    wav(corpus, names[1]).write_bytes(wav(corpus, names[1]).read_bytes()[:9_000])
    wav(corpus, names[2]).write_bytes(b"")
    wav(corpus, names[3]).unlink()
    shutil.copy(wav(corpus, names[7]), corpus / "wav" / "dev" / "S0724")
    lines = [f"{name} 度" for n, name in names.items() if n != 4]
    absent = [f"BAC009S0100W000{n} 度" for n in range(3)]
    write_list(corpus, *(f"{name} {text}" for name, text in TEXTS.items()), *lines, f"{names[5]} 二", *absent,
               "BAC009S0002W0199", "BAC009S0002W0198 度")  # fmt: skip
    report = prepare(corpus, tmp_path / "out")
    assert named(tmp_path / "out") == {
        ("wrong sample rate", names[0]), ("unreadable", names[1]), ("empty file", names[2]),
        ("missing audio", names[3]), ("no transcript", names[4]), ("duplicate", names[5]), ("duplicate", names[7]),
        ("missing audio", "S0100"), ("empty transcript", "BAC009S0002W0199"), ("missing audio", "BAC009S0002W0198"),
    }  # fmt: skip
    assert "all 3 recordings are missing" in report.summary()
    kept = [one.id for one in read_manifest(tmp_path / "out" / "train.jsonl")]
    assert kept == ["BAC009S0002W0001", "BAC009S0002W0002", names[6], names[7]]
    assert [one.id for one in read_manifest(tmp_path / "out" / "dev.jsonl")] == ["BAC009S0724W0001"]


def test_the_report_names_the_archive_of_a_missing_speaker(corpus: Path, tmp_path: Path) -> None:
    shutil.rmtree(corpus / "wav" / "dev" / "S0724")
    (corpus / "wav" / "S0724.tar.gz").write_bytes(b"")
    report = prepare(corpus, tmp_path / "out")
    assert [problem.name for problem in report.problems] == ["S0724"]
    assert "unpack" in report.problems[0].what


def test_a_folder_that_is_not_aishell_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="openslr"):
        prepare(tmp_path, tmp_path / "out")


def test_the_real_excerpt(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "data_aishell").is_dir():
        pytest.skip(f"needs data_aishell in {shared_data}")
    report = prepare(shared_data / "data_aishell", tmp_path / "out", workers=2)
    assert not report.problems
    assert {name: size.utterances for name, size in report.sizes.items()} == {"train": 100, "dev": 100, "test": 0}
    first = read_manifest(tmp_path / "out" / "train.jsonl")[0]
    assert (first.id, first.text) == ("BAC009S0150W0001", "设定二十九度")
