"""Manifests: read as written; errors name file and line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headsync.corpora.manifest import Utterance, read_manifest, write_manifest
from headsync.errors import DataError

GOOD = {"id": "a", "audio": "a.flac", "text": "one", "seconds": 1.5}


def test_a_manifest_is_read_as_written(tmp_path: Path) -> None:
    utterances = [
        Utterance("a", tmp_path / "part" / "a.flac", "seven three", 1.25, "01"),
        Utterance("b", tmp_path / "b.flac", "", 2.0),
        Utterance("c", Path("/elsewhere/c.opus"), "größe 中", 0.5, "02"),
    ]
    write_manifest(tmp_path / "new" / ".." / "train.jsonl", utterances)
    assert read_manifest(tmp_path / "train.jsonl") == utterances


@settings(max_examples=50, deadline=None)
@example(text="one\u2028two\x85three\rfour\nfive", speaker="\x0b")
@given(text=st.text(st.characters(codec="utf-8")), speaker=st.text(st.characters(codec="utf-8")))
def test_any_text_is_read_as_written(tmp_path_factory: pytest.TempPathFactory, text: str, speaker: str) -> None:
    path = tmp_path_factory.getbasetemp() / "train.jsonl"
    write_manifest(path, [Utterance("a", path.parent / "a.flac", text, 1.0, speaker)])
    read = read_manifest(path)
    assert [(one.text, one.speaker) for one in read] == [(text, speaker)]


def test_a_corpus_can_be_moved_as_a_whole(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write_manifest(here / "train.jsonl", [Utterance("a", here / "train" / "a.flac", "one", 1.0)])
    shutil.move(here, there)
    assert read_manifest(there / "train.jsonl")[0].audio == there / "train" / "a.flac"


def test_a_write_that_fails_leaves_the_old_manifest(tmp_path: Path) -> None:
    def failing() -> Iterator[Utterance]:
        yield Utterance("b", tmp_path / "b.flac", "two", 1.0)
        raise RuntimeError("no more")

    path = tmp_path / "train.jsonl"
    write_manifest(path, [Utterance("a", tmp_path / "a.flac", "one", 1.0)])
    with pytest.raises(RuntimeError):
        write_manifest(path, failing())
    assert [one.id for one in read_manifest(path)] == ["a"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not a JSON object"),
        ("[1, 2]", "expected a JSON object"),
        (json.dumps({key: GOOD[key] for key in ("id", "audio", "seconds")}), '"text" is missing'),
        (json.dumps(GOOD | {"text": None}), '"text" must be a string'),
        (json.dumps(GOOD | {"id": 7}), '"id" must be a string'),
        (json.dumps(GOOD | {"speaker": 7}), '"speaker" must be a string'),
        (json.dumps(GOOD | {"seconds": "1"}), '"seconds" must be a number'),
        (json.dumps(GOOD | {"seconds": 0}), "above zero"),
        (json.dumps(GOOD | {"seconds": True}), "above zero"),
        (json.dumps(GOOD | {"seconds": float("nan")}), "above zero"),
    ],
)
def test_the_error_for_a_bad_line_names_its_number(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(GOOD | {"id": "first"}) + "\n\n" + line + "\n")
    with pytest.raises(DataError, match=reason) as caught:
        read_manifest(path)
    assert str(caught.value).startswith(f"{path}:3: ")


def test_a_repeated_id_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD) + "\n")
    with pytest.raises(DataError, match="'a' is listed twice"):
        read_manifest(path)


def test_a_missing_or_binary_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="prepare the corpus first"):
        read_manifest(tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_manifest(tmp_path / "train.jsonl")
