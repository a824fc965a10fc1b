"""Common Voice: any release, lists of clip ids, disjoint speakers and sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.corpora.commonvoice import NO_SPEAKERS, prepare
from headsync.corpora.manifest import read_manifest
from headsync.corpora.splits import part_of
from headsync.errors import DataError

HEADER = "client_id\tpath\tsentence\tup_votes\tdown_votes\n"
SPEAKERS = {part: [f"s{n}" for n in range(60) if part_of(f"s{n}") == part][:3] for part in ("train", "dev", "test")}


def clip(folder: Path, number: int) -> str:
    """Write a clip of 1 s at 32 kHz and return its file name."""
    name = f"common_voice_en_{number}.mp3"
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(number).normal(0, 0.05, 32_000)
    soundfile.write(folder / "clips" / name, samples, 32_000, format="MP3")
    return name


def write_list(folder: Path, name: str, rows: list[tuple[str, int, str]]) -> None:
    lines = [f"{speaker}\t{clip(folder, number)}\t{sentence}\t2\t0\n" for speaker, number, sentence in rows]
    (folder / f"{name}.tsv").write_text(HEADER + "".join(lines), encoding="utf-8")


def written(out: Path, part: str) -> list[tuple[str, str, str]]:
    return [
        (one.id.removeprefix("common_voice_en_"), one.text, one.speaker) for one in read_manifest(out / f"{part}.jsonl")
    ]


def problems(out: Path) -> set[tuple[str, str, str]]:
    report = json.loads((out / "report.json").read_text())
    return {(one["part"], one["kind"], one["name"].removeprefix("common_voice_en_")) for one in report["problems"]}


def test_a_release_without_parts_is_split_by_speakers_and_sentences(tmp_path: Path) -> None:
    (train, other, _), (dev, *_), (test, *_) = SPEAKERS["train"], SPEAKERS["dev"], SPEAKERS["test"]
    rows = [
        (train, 1, 'He said "no".'),
        (train, 2, "It's late!"),  # the sentence of the dev speaker
        (other, 3, "A third one."),
        (dev, 4, "its LATE"),
        (dev, 5, "It's  late"),
        (test, 6, "Test, please."),
        (test, 7, ""),
    ]
    write_list(tmp_path, "validated", rows)
    report = prepare(tmp_path, tmp_path / "out")
    assert written(tmp_path / "out", "train") == [("1", 'He said "no".', train), ("3", "A third one.", other)]
    assert written(tmp_path / "out", "dev") == [("4", "its LATE", dev), ("5", "It's late", dev)]
    assert written(tmp_path / "out", "test") == [("6", "Test, please.", test)]
    assert problems(tmp_path / "out") == {("train", "excluded", "2"), ("test", "empty transcript", "7")}
    assert {one.seconds for one in read_manifest(tmp_path / "out" / "train.jsonl")} == {1.0}
    assert report.notes == ()


def test_published_parts_are_used_and_validated_extends_train(tmp_path: Path) -> None:
    language = tmp_path / "cv-corpus-9" / "en"
    write_list(language, "test", [("a", 1, "One test.")])
    write_list(language, "dev", [("b", 2, "One dev.")])
    write_list(language, "train", [("c", 3, "One train.")])
    rows = [("c", 3, "One train."), ("d", 4, "More."), ("e", 5, "one test"), ("a", 6, "Of the test speaker.")]
    write_list(language, "validated", rows)
    prepare(tmp_path / "cv-corpus-9", tmp_path / "out")
    assert [name for name, _, _ in written(tmp_path / "out", "train")] == ["3"]
    prepare(language, tmp_path / "all", validated=True)
    assert [name for name, _, _ in written(tmp_path / "all", "train")] == ["3", "4"]
    assert problems(tmp_path / "all") == {("train", "excluded", "5"), ("train", "excluded", "6")}
    assert [name for name, _, _ in written(tmp_path / "all", "test")] == ["1"]


def test_lists_of_clip_ids_select_clips_from_any_list(tmp_path: Path) -> None:
    write_list(tmp_path, "validated", [("a", 1, "One."), ("b", 2, "Two."), ("c", 3, "Three.")])
    write_list(tmp_path, "other", [("d", 4, "Four.")])
    (tmp_path / "small.txt").write_text("common_voice_en_4\ncommon_voice_en_1.mp3\n\ncommon_voice_en_99\n")
    (tmp_path / "test.txt").write_text("common_voice_en_2\n")
    lists = [tmp_path / "small.txt", tmp_path / "test.txt"]
    prepare(tmp_path, tmp_path / "out", ids=lists)
    assert [name for name, _, _ in written(tmp_path / "out", "small")] == ["1", "4"]
    assert [name for name, _, _ in written(tmp_path / "out", "test")] == ["2"]
    assert problems(tmp_path / "out") == {("small", "no transcript", "99")}
    with pytest.raises(DataError, match=r"none\.txt: this list of clip ids cannot be read"):
        prepare(tmp_path, tmp_path / "out", ids=[tmp_path / "none.txt"])


def test_missing_and_damaged_clips_are_reported_and_the_rest_is_kept(tmp_path: Path) -> None:
    speaker = SPEAKERS["train"][0]
    write_list(tmp_path, "validated", [(speaker, n, f"Sentence {n}.") for n in range(5)])
    (tmp_path / "clips" / "common_voice_en_1.mp3").unlink()
    (tmp_path / "clips" / "common_voice_en_2.mp3").write_bytes(b"")
    (tmp_path / "clips" / "common_voice_en_3.mp3").write_bytes(b"no audio" * 100)
    report = prepare(tmp_path, tmp_path / "out")
    assert [name for name, _, _ in written(tmp_path / "out", "train")] == ["0", "4"]
    assert report.counts == {"empty file": 1, "missing audio": 1, "unreadable": 1}
    assert "missing audio: 1" in report.summary()


def test_the_first_release_has_parts_but_no_speakers(tmp_path: Path) -> None:
    for part, number in (("train", 1), ("dev", 2), ("test", 3)):
        folder = tmp_path / f"cv-valid-{part}"
        folder.mkdir()
        (tmp_path / "clips" / clip(tmp_path, number)).rename(folder / "sample-000000.mp3")
        rows = f'filename,text,up_votes\ncv-valid-{part}/sample-000000.mp3,"well, {part}",1\n'
        (tmp_path / f"cv-valid-{part}.csv").write_text(rows)
    report = prepare(tmp_path, tmp_path / "out")
    assert [one.text for one in read_manifest(tmp_path / "out" / "test.jsonl")] == ["well, test"]
    assert report.notes == (NO_SPEAKERS,)


def test_a_folder_without_lists_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=r"found no list such as validated\.tsv; download a release"):
            prepare(source, tmp_path / "out")


def test_a_damaged_row_is_reported(tmp_path: Path) -> None:
    write_list(tmp_path, "validated", [(SPEAKERS["train"][0], 1, "Fine.")])
    with (tmp_path / "validated.tsv").open("a") as file:
        file.write("only-a-speaker\n")
    prepare(tmp_path, tmp_path / "out")
    assert problems(tmp_path / "out") == {("validated", "unreadable list", "validated.tsv row 3")}
