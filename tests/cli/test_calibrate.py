"""`headsync calibrate`: which folder it changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import headsync
from commands import one_line, run
from headsync.corpora.manifest import Utterance, write_manifest
from headsync.model_folder import find, load_folder
from recordings import DIGIT_RECORDINGS

DEMO = DIGIT_RECORDINGS


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The demo recordings; the first word of each text is wrong."""
    texts = {path: path.with_suffix(".txt").read_text().split() for path in sorted(DEMO.glob("*.flac"))}
    wrong = {path: " ".join(["zero" if words[0] != "zero" else "one", *words[1:]]) for path, words in texts.items()}
    write_manifest(tmp_path / "dev.jsonl", [Utterance(path.stem, path, text, 1.0) for path, text in wrong.items()])
    return tmp_path / "dev.jsonl"


def test_a_shipped_model_is_not_changed(manifest: Path) -> None:
    config = find("digits-en") / "config.toml"
    before = config.read_bytes()
    for name in ("digits-en", config.parent):
        result = run("calibrate", name, manifest)
        assert result.exit_code == 1
        assert one_line(result.stderr)
        assert "shipped models cannot be changed; name a folder for a changed copy" in result.stderr
    assert config.read_bytes() == before


def test_a_calibrated_copy(manifest: Path, tmp_path: Path) -> None:
    before = (find("digits-en") / "config.toml").read_bytes()
    result = run("calibrate", "digits-en", manifest, "--out", tmp_path / "mine")
    assert result.exit_code == 0, result.stderr
    assert "confidence_scale = " in result.stdout
    assert (find("digits-en") / "config.toml").read_bytes() == before
    assert load_folder(tmp_path / "mine").config.decoding != load_folder(find("digits-en")).config.decoding
    assert headsync.Recognizer.load(tmp_path / "mine").transcribe(*headsync.read_audio(next(DEMO.glob("*.flac"))))
    assert "already exists" in run("calibrate", "digits-en", manifest, "--out", tmp_path / "mine").stderr


def test_an_own_folder_is_changed_in_place(manifest: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(find("digits-en"), tmp_path / "mine"))
    assert run("calibrate", folder, manifest).exit_code == 0
    assert load_folder(folder).config.decoding != load_folder(find("digits-en")).config.decoding
