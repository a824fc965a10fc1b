"""LibriSpeech: correct manifests, and a report of all damage."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.corpora import audio_files, librispeech
from headsync.corpora.librispeech import prepare
from headsync.corpora.manifest import read_manifest
from headsync.errors import DataError

RATE = 16_000


def say(path: Path, seed: int, rate: int = RATE, seconds: float = 0.5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.default_rng(seed).normal(0, 0.1, round(seconds * rate)), rate, subtype="PCM_16")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Eight utterances of one chapter to train on, and one for development."""
    root = tmp_path / "LibriSpeech"
    chapter = root / "train-clean-100" / "19" / "198"
    for n in range(8):
        say(chapter / f"19-198-{n:04d}.flac", n)
    lines = [f"19-198-{n:04d} WORD NUMBER {'ABCDEFGH'[n]}\n" for n in range(8)]
    (chapter / "19-198.trans.txt").write_text("".join(lines))
    say(root / "dev-clean" / "84" / "1" / "84-1-0000.flac", 99, seconds=0.75)
    (root / "dev-clean" / "84" / "1" / "84-1.trans.txt").write_text("84-1-0000 IT'S FINE\n")
    return root


def named(out: Path) -> set[tuple[str, str, str]]:
    report = json.loads((out / "report.json").read_text())
    return {(problem["part"], problem["kind"], problem["name"]) for problem in report["problems"]}


def test_every_part_gets_its_manifest(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = prepare(corpus, out)
    train, dev = (read_manifest(out / f"{part}.jsonl") for part in ("train-clean-100", "dev-clean"))
    assert [one.text for one in train] == [f"WORD NUMBER {letter}" for letter in "ABCDEFGH"]
    assert [(one.id, one.text, one.seconds, one.speaker) for one in dev] == [("84-1-0000", "IT'S FINE", 0.75, "84")]
    assert dev[0].audio == corpus / "dev-clean" / "84" / "1" / "84-1-0000.flac"
    assert not report.problems
    assert "only 8 of 28539 utterances and 1 of 251 speakers of train-clean-100 are present" in report.summary()


def test_long_utterances_are_in_their_part_but_not_in_the_joined_manifests(corpus: Path, tmp_path: Path) -> None:
    """As in ESPnet: fewer than 3000 frames of 10 ms and fewer than 400 characters, spaces included."""
    lengths = {"train-clean-100": (29.9, 399), "train-other-500": (30.1, 5), "train-clean-360": (0.5, 400)}
    for n, (part, (seconds, characters)) in enumerate([*lengths.items(), ("dev-other", (31, 5))]):
        chapter = corpus / part / "20" / "1"
        say(chapter / f"20-1-{n:04d}.flac", n, seconds=seconds)
        text = ("AB " * 200)[: characters - 1] + "C"
        (chapter / "20-1.trans.txt").write_text(f"20-1-{n:04d} {text}\n")
    out = tmp_path / "out"
    prepare(corpus, out)
    ids = {name: [u.id for u in read_manifest(out / f"{name}.jsonl")] for name in ("train", "dev", "train-other-500")}
    assert ids["train"] == [*(f"19-198-{n:04d}" for n in range(8)), "20-1-0000"]
    assert (ids["dev"], ids["train-other-500"]) == (["84-1-0000"], ["20-1-0001"])
    assert len((out / "lm_train.txt").read_text().splitlines()) == 9


def test_the_parent_folder_is_accepted(corpus: Path, tmp_path: Path) -> None:
    assert prepare(corpus.parent, tmp_path / "out").sizes.keys() == {"dev-clean", "train-clean-100"}


def damage(chapter: Path) -> None:
    """One of each: truncated, changed, empty, wrong rate, missing, no line, no words, two lines, not audio."""
    files = [chapter / f"19-198-{n:04d}.flac" for n in range(8)]
    files[0].write_bytes(files[0].read_bytes()[:2_000])
    content = bytearray(files[1].read_bytes())
    content[26] ^= 1  # the first byte of the checksum
    files[1].write_bytes(content)
    files[2].write_bytes(b"")
    say(files[3], 3, rate=8_000)
    files[4].unlink()
    files[6].write_bytes(b"no sound at all")
    say(chapter / "19-198-0008.flac", 8)
    say(chapter / "19-198-0009.flac", 9)
    say(chapter / "19-198-0010.flac", 10)
    with (chapter / "19-198.trans.txt").open("a") as file:
        file.write("19-198-0005 SOMETHING ELSE\n19-198-0009\n19-198-0010 TWICE\n19-198-0010  TWICE \n")


def test_all_damage_is_reported_and_the_rest_is_prepared(corpus: Path, tmp_path: Path) -> None:
    damage(corpus / "train-clean-100" / "19" / "198")
    copy = corpus / "train-clean-360" / "19" / "198"  # the same utterance again, in another part
    shutil.copytree(corpus / "dev-clean" / "84" / "1", copy)
    prepare(corpus, tmp_path / "out")
    kinds = [
        "unreadable",
        "wrong checksum",
        "empty file",
        "wrong sample rate",
        "missing audio",
        "duplicate",
        "unreadable",
    ]
    expected = {("train-clean-100", kind, f"19-198-{n:04d}") for n, kind in enumerate(kinds)}
    expected |= {("train-clean-100", "no transcript", "19-198-0008")}
    expected |= {("train-clean-100", "empty transcript", "19-198-0009")}
    expected |= {("train-clean-100", "duplicate", "19-198-0010"), ("train-clean-360", "duplicate", "84-1-0000")}
    assert named(tmp_path / "out") == expected
    kept = read_manifest(tmp_path / "out" / "train-clean-100.jsonl")
    assert [(one.id, one.text) for one in kept] == [("19-198-0007", "WORD NUMBER H"), ("19-198-0010", "TWICE")]
    assert len(read_manifest(tmp_path / "out" / "dev-clean.jsonl")) == 1
    assert read_manifest(tmp_path / "out" / "train-clean-360.jsonl") == []


def test_an_unreadable_list_is_reported(corpus: Path, tmp_path: Path) -> None:
    (corpus / "dev-clean" / "84" / "1" / "84-1.trans.txt").write_bytes(b"84-1-0000 \xff\xfe\n")
    prepare(corpus, tmp_path / "out")
    assert named(tmp_path / "out") == {
        ("dev-clean", "unreadable list", "84-1.trans.txt"), ("dev-clean", "no transcript", "84-1-0000"),
    }  # fmt: skip


def checked_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    checked: list[str] = []
    decoded_seconds = audio_files.decoded_seconds
    monkeypatch.setattr(
        audio_files, "decoded_seconds", lambda path, rate: checked.append(path.stem) or decoded_seconds(path, rate)
    )
    return checked


def test_a_second_run_decodes_only_changed_files(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = corpus / "train-clean-100" / "19" / "198"
    (chapter / "19-198-0003.flac").write_bytes(b"")
    prepare(corpus, tmp_path / "out")
    say(chapter / "19-198-0003.flac", 3)
    say(chapter / "19-198-0004.flac", 4, seconds=0.25)
    with (tmp_path / "out" / "checked.jsonl").open("a") as memory:
        memory.write('["cut o')  # as a killed run leaves it
    checked = checked_files(monkeypatch)
    report = prepare(corpus, tmp_path / "out")
    assert checked == ["19-198-0003", "19-198-0004"]
    assert not report.problems
    lengths = [one.seconds for one in read_manifest(tmp_path / "out" / "train-clean-100.jsonl")]
    assert lengths == [0.5, 0.5, 0.5, 0.5, 0.25, 0.5, 0.5, 0.5]
    checked.clear()
    prepare(corpus, tmp_path / "out")
    assert len(checked) <= 1  # the line after the one that was cut off is lost with it


def test_threads_change_nothing(corpus: Path, tmp_path: Path) -> None:
    damage(corpus / "train-clean-100" / "19" / "198")
    for workers in (1, 3):
        prepare(corpus, tmp_path / str(workers), workers=workers)
    for name in ("train-clean-100.jsonl", "dev-clean.jsonl", "report.json", "checked.jsonl"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_progress_counts_to_the_end(corpus: Path, tmp_path: Path) -> None:
    counts: list[tuple[int, int]] = []
    prepare(corpus, tmp_path / "out", progress=lambda done, total: counts.append((done, total)))
    assert counts == [(n, 9) for n in range(1, 10)]


def test_a_relative_source_is_listed_absolutely(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(Path("LibriSpeech"), Path("out"))
    line = json.loads((tmp_path / "out" / "dev-clean.jsonl").read_text())
    assert os.path.isabs(line["audio"])


def test_a_folder_that_is_not_librispeech_is_an_error(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="openslr"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
    shutil.rmtree(corpus / "dev-clean")
    for path in corpus.rglob("*.flac"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no utterance can be used"):
        prepare(corpus, tmp_path / "out")
    assert len(named(tmp_path / "out")) == 8


def test_a_folder_contains_one_corpus(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.json").write_text('{"corpus": "wsj", "parts": {}, "problems": []}')
    with pytest.raises(DataError, match="was made from wsj"):
        prepare(corpus, out)
    (out / "report.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        prepare(corpus, out)


def test_a_second_source_in_the_same_folder_adds_its_parts(corpus: Path, tmp_path: Path) -> None:
    (corpus / "dev-clean" / "84" / "1" / "84-1-0000.flac").write_bytes(b"")
    other = tmp_path / "other"
    other.mkdir()
    (corpus / "train-clean-100").rename(other / "train-clean-100")
    (other / "train-clean-100").rename(other / "train-clean-360")
    say(corpus / "train-clean-100" / "20" / "1" / "20-1-0000.flac", 5)
    (corpus / "train-clean-100" / "20" / "1" / "20-1.trans.txt").write_text("20-1-0000 ONE MORE\n")
    prepare(corpus, tmp_path / "out")
    prepare(other, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {name: part["source"] for name, part in report["parts"].items()} == {
        "dev-clean": str(corpus), "train-clean-100": str(corpus), "train-clean-360": str(other),
    }  # fmt: skip
    assert named(tmp_path / "out") == {("dev-clean", "empty file", "84-1-0000")}
    assert report["counts"] == {"empty file": 1}
    assert len(read_manifest(tmp_path / "out" / "train.jsonl")) == 9


def test_the_real_excerpt(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "LibriSpeech").is_dir():
        pytest.skip(f"needs LibriSpeech in {shared_data}")
    report = prepare(shared_data / "LibriSpeech", tmp_path / "out", workers=2)
    assert not report.problems
    assert {name: (size.utterances, size.speakers) for name, size in report.sizes.items()} == {
        "test-other": (30, 10), "train-clean-100": (60, 3),
    }  # fmt: skip
    first = read_manifest(tmp_path / "out" / "train-clean-100.jsonl")[0]
    assert (first.id, first.text, first.speaker) == ("19-198-0000", "NORTHANGER ABBEY", "19")
    assert librispeech.PIECES == 5_000
