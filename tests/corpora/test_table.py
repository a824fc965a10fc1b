"""Tables of recordings and texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from headsync.cli.app import app
from headsync.corpora.manifest import read_manifest
from headsync.corpora.table import prepare
from headsync.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clips").mkdir()
    for seed, name in enumerate("abce"):
        samples = np.random.default_rng(seed).normal(0, 0.1, 8_000)
        soundfile.write(tmp_path / "clips" / f"{name}.wav", samples, 16_000, subtype="PCM_16")
    return tmp_path


def listed(folder: Path, name: str, content: str) -> list[tuple[str, str, str]]:
    (folder / name).write_text(content, encoding="utf-8")
    prepare(folder / name, folder / "out")
    return [(one.id, one.text, one.speaker) for one in read_manifest(folder / "out" / f"{Path(name).stem}.jsonl")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'clips/a.wav,"Hello, you"\nclips/b.wav,no\n'),
        ("t.csv", 'path,text\nclips/a.wav,"Hello, you"\nclips/b.wav,no\n'),
        ("t.csv", '\ufeffSentence;length;Path\r\n"Hello, you";3;clips/a.wav\r\nno;4;clips/b.wav\r\n'),
        ("t.tsv", "clips/a.wav\tHello,  you \n\nclips/b.wav\tno\n"),
        ("t.txt", "clips/a.wav\tHello, you\nclips/b.wav\tno\n"),
    ],
)
def test_with_and_without_a_header(folder: Path, name: str, content: str) -> None:
    assert listed(folder, name, content) == [("clips/a", "Hello, you", ""), ("clips/b", "no", "")]


def test_speakers_and_absolute_paths(folder: Path) -> None:
    absolute = folder / "clips" / "b.wav"
    found = listed(folder, "t.csv", f"clips/a.wav,hello,anna\n{absolute},no,bert\n")
    assert found == [(str(absolute.with_suffix("")), "no", "bert"), ("clips/a", "hello", "anna")]


def test_a_row_with_an_empty_text_is_kept(folder: Path) -> None:
    assert listed(folder, "t.csv", "clips/a.wav,hello\nclips/b.wav,\n")[1] == ("clips/b", "", "")


def test_all_damage_is_reported_and_the_rest_is_prepared(folder: Path) -> None:
    (folder / "clips" / "b.wav").write_bytes(b"")
    content = "path,text\nclips/a.wav,hello\nclips/b.wav,x\nclips/d.wav,x\nclips/c.wav\n,x\nclips/a.wav,again\n"
    content += "clips/e.wav,hello\nclips/e.wav,hello\n"
    assert listed(folder, "t.csv", content) == [("clips/e", "hello", "")]
    problems = json.loads((folder / "out" / "report.json").read_text())["problems"]
    assert {(one["kind"], one["name"]) for one in problems} == {
        ("empty file", "clips/b"), ("missing audio", "clips/d"), ("unreadable list", "row 5"),
        ("unreadable list", "row 6"), ("duplicate", "clips/a"), ("duplicate", "clips/e"),
    }  # fmt: skip


def test_a_recording_with_two_texts_is_omitted(folder: Path) -> None:
    rows = "clips/a.wav,hello\nclips/b.wav,no\nclips/a.wav,good bye\nclips/a.wav,hello\n"
    assert listed(folder, "t.csv", rows) == [("clips/b", "no", "")]
    problems = json.loads((folder / "out" / "report.json").read_text())["problems"]
    assert "two different texts; neither is kept" in problems[0]["what"]


def test_a_second_table_in_the_same_folder_keeps_the_report_of_the_first(folder: Path) -> None:
    listed(folder, "one.csv", "clips/a.wav,hello\nclips/none.wav,no\n")
    listed(folder, "two.csv", "clips/b.wav,no\n")
    report = json.loads((folder / "out" / "report.json").read_text())
    assert {name: (part["source"], part["utterances"]) for name, part in report["parts"].items()} == {
        "one": (str(folder / "one.csv"), 1), "two": (str(folder / "two.csv"), 1),
    }  # fmt: skip
    assert [(problem["part"], problem["name"]) for problem in report["problems"]] == [("one", "clips/none")]
    listed(folder, "one.csv", "clips/a.wav,hello\n")
    assert json.loads((folder / "out" / "report.json").read_text())["problems"] == []


def test_an_unreadable_table_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        prepare(folder / "none.csv", folder / "out")
    (folder / "t.csv").write_text("\n\n")
    with pytest.raises(DataError, match="no rows"):
        prepare(folder / "t.csv", folder / "out")


def test_the_command_prints_the_report(folder: Path) -> None:
    (folder / "clips" / "b.wav").write_bytes(b"")
    (folder / "t.csv").write_text("clips/a.wav,hello\nclips/b.wav,x\n")
    words = ["prepare", "table", str(folder / "t.csv"), str(folder / "out"), "--workers", "2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "t: 1 utterances" in result.output
    assert "empty file: 1" in result.output
    assert "report.json lists all 1 problems" in result.output
    (folder / "clips" / "a.wav").unlink()
    assert CliRunner().invoke(app, words).exit_code == 1
