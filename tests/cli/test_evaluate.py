"""`headsync evaluate` and `headsync demo`: figures and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from commands import Say, one_line, run
from headsync.cli import demo as demo_command
from headsync.corpora.manifest import Utterance, write_manifest


@pytest.fixture
def manifest(wav: Path, tmp_path: Path) -> Path:
    path = tmp_path / "test.jsonl"
    write_manifest(path, [Utterance("a", wav, "one two", 2.0), Utterance("b", wav, "three", 2.0)])
    return path


def test_evaluate_prints_a_table_and_writes_json(manifest: Path, tmp_path: Path, says: Any) -> None:
    says("one nine", "three")
    settings = ("--beam", 2, "--lookahead", 8, "--threshold", 0.5, "--ctc-weight", 0.4, "--centre-ms", 240)
    result = run("evaluate", "some-model", manifest, "--json", tmp_path / "out.json", *settings)
    assert result.exit_code == 0, result.stderr
    figures = {line[:26].strip(): line[26:].strip() for line in result.stdout.splitlines()}
    assert figures["error rate"].startswith("33.33%")
    assert "95 %" in figures["error rate"]
    assert figures["substitutions"] == "1"
    assert figures["deletions"] == "0"
    assert figures["insertions"] == "0"
    assert figures["cost ratio r"] == "0.500"
    assert figures["user-perceived latency"].startswith("0.20 s  (p90 0.20, p95")
    assert figures["unstable partial words"] == "0.00%"
    assert list(figures)[-3:] == ["first display", "normalised erasure", "unstable partial words"]
    decoding = {"beam": 2, "lookahead_frames": 8, "threshold": 0.5, "ctc_weight": 0.4}
    decoding |= {"centre_ms": 240.0, "right_ms": None}
    decoding |= {"lm": None, "lm_weight": None, "lm_use": None, "hotwords": [], "phrases": [], "engine": "auto"}
    assert says.asked == {"model": "some-model", **decoding}
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["error_rate"] == pytest.approx(1 / 3, abs=1e-4)
    assert document["model"] == "some-model"
    assert document["threshold"] == 0.5


def test_evaluate_limit(manifest: Path, says: Say) -> None:
    says("one two", "nine")
    assert "0.00%" in run("evaluate", "some-model", manifest, "--limit", 1).stdout


def test_evaluate_checks_its_files_before_it_starts(manifest: Path, tmp_path: Path, says: Say) -> None:
    says()
    result = run("evaluate", "some-model", manifest, "--json", tmp_path / "no" / "out.json")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "out.json" in result.stderr
    result = run("evaluate", "some-model", manifest, "--json", tmp_path)
    assert (result.exit_code, result.stderr) == (1, f"{tmp_path}: this is a folder; name a file.\n")
    result = run("evaluate", "some-model", tmp_path / "missing.jsonl")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "missing.jsonl" in result.stderr
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty" in run("evaluate", "some-model", tmp_path / "empty.jsonl").stderr


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in [("1", "one two\n"), ("2", "three")]:
        soundfile.write(tmp_path / f"{name}.flac", np.zeros(16_000, dtype=np.float32), 16_000)
        (tmp_path / f"{name}.txt").write_text(text)
    monkeypatch.setattr(demo_command, "RECORDINGS", tmp_path)
    return tmp_path


def test_demo_compares_with_the_expected_texts(recordings: Path, says: Say) -> None:
    says("one two", "three")
    result = run("demo", "--fast")
    assert result.exit_code == 0, result.stderr
    growing = "    0.50 s  one\n    0.80 s  one two\n    1.00 s  one two.\n  delay 0.20 s · r 0.50"
    assert growing in result.stdout  # a pipe sees it grow, too
    assert "2 of 2 recordings as expected" in result.stdout
    says("one two", "nine")
    result = run("demo", "--fast")
    assert result.exit_code == 0
    assert "expected: three" in result.stdout
    assert "1 of 2" in result.stdout


def test_demo_without_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command, "RECORDINGS", tmp_path)
    result = run("demo", "--fast")
    assert result.exit_code == 1
    assert one_line(result.stderr)
