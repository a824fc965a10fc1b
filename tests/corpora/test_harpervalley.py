"""Harper Valley: segments cut by their times, disjoint speakers, no segment lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from headsync.corpora.harpervalley import prepare
from headsync.corpora.manifest import read_manifest
from headsync.corpora.splits import part_of
from headsync.errors import DataError

NUMBER = {part: next(n for n in range(99) if part_of(f"hv{n:02d}") == part) for part in ("train", "dev", "test")}


def segment(index: int, role: str, start: int, duration: int, text: str) -> dict[str, Any]:
    return {
        "index": index, "speaker_role": role, "offset_ms": start, "duration_ms": duration, "human_transcript": text,
        "transcript": "the machine's",
    }  # fmt: skip


def call(root: Path, name: str, agent: int, caller: int, segments: list[dict[str, Any]]) -> None:
    """Write a call of 4 s; sample n of the agent is n, that of the caller -n."""
    for role, sign in (("agent", 1), ("caller", -1)):
        path = root / "data" / "audio" / role / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, (sign * np.arange(32_000)).astype(np.int16), 8_000, subtype="PCM_16")
    speakers = {"agent": {"speaker_id": agent}, "caller": {"speaker_id": caller}}
    for kind, content in (("metadata", speakers), ("transcript", segments)):
        path = root / "data" / kind / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def test_segments_are_cut_by_their_times_and_go_to_the_part_of_their_speaker(tmp_path: Path) -> None:
    segments = [
        segment(1, "agent", 500, 1_000, "hello [noise] how can i help"),
        segment(2, "caller", 1_600, 900, "my card is lost"),
        segment(3, "agent", 2_600, 400, "[noise]"),
        segment(4, "agent", 3_000, 300, "<unk> bank"),
        segment(5, "agent", 3_000, 300, "you wou~"),
        segment(6, "caller", 3_900, 200, "bye"),
    ]
    call(tmp_path, "c1", NUMBER["train"], NUMBER["dev"], segments)
    report = prepare(tmp_path, tmp_path / "out")
    (train,), (dev,) = (read_manifest(tmp_path / "out" / f"{part}.jsonl") for part in ("train", "dev"))
    assert (train.id, train.text, train.seconds) == ("c1-0001", "hello how can i help", 1.0)
    assert (dev.id, dev.text, dev.speaker) == ("c1-0002", "my card is lost", f"hv{NUMBER['dev']:02d}")
    samples, rate = soundfile.read(train.audio, dtype="int16")
    assert rate == 8_000
    np.testing.assert_array_equal(samples, np.arange(4_000, 12_000))
    np.testing.assert_array_equal(soundfile.read(dev.audio, dtype="int16")[0], -np.arange(12_800, 20_000))
    assert {(problem.kind, problem.name) for problem in report.problems} == {
        ("empty transcript", "c1-0003"), ("excluded", "c1-0004"), ("excluded", "c1-0005"), ("unreadable", "c1-0006"),
    }  # fmt: skip


def test_long_sentences_of_held_out_speakers_are_not_in_train(tmp_path: Path) -> None:
    said = ["hello this is the bank", "thank you"]
    segments = [segment(n, "agent", 500 * n, 400, text) for n, text in enumerate(said)]
    call(tmp_path, "c1", NUMBER["train"], 0, segments)
    call(tmp_path, "c2", NUMBER["test"], 0, segments)
    prepare(tmp_path / "data", tmp_path / "out")
    assert [one.text for one in read_manifest(tmp_path / "out" / "train.jsonl")] == ["thank you"]
    assert [one.text for one in read_manifest(tmp_path / "out" / "test.jsonl")] == said


def test_missing_files_are_reported_and_the_other_calls_are_kept(tmp_path: Path) -> None:
    for name in ("c1", "c2", "c3"):
        call(tmp_path, name, NUMBER["train"], NUMBER["dev"], [segment(1, "agent", 0, 500, f"call {name}")])
    (tmp_path / "data" / "audio" / "agent" / "c1.wav").unlink()
    (tmp_path / "data" / "metadata" / "c2.json").write_text("{")
    report = prepare(tmp_path, tmp_path / "out")
    assert [one.text for one in read_manifest(tmp_path / "out" / "train.jsonl")] == ["call c3"]
    assert {(one.kind, one.name) for one in report.problems} == {
        ("missing audio", "c1-0001"),
        ("unreadable list", "c2"),
    }


def test_a_folder_without_calls_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"found no data/transcript/\*\.json; clone https"):
        prepare(tmp_path, tmp_path / "out")
