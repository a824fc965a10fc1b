"""A full disk: every prepare command ends with one sentence that names the file."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headsync.corpora.manifest import Utterance, write_manifest

LIMIT = 600  # bytes that a file may have; a write beyond it fails as on a full disk, with another reason


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A Kaldi folder with segments, a table and a manifest of the same recording."""
    root = tmp_path / "source"
    root.mkdir()
    soundfile.write(root / "a.wav", np.random.default_rng(0).normal(0, 0.1, 32_000), 16_000, subtype="PCM_16")
    (root / "wav.scp").write_text("a a.wav\n")
    (root / "text").write_text("a-0 hello\n")
    (root / "segments").write_text("a-0 a 0.5 1.5\n")
    (root / "long.csv").write_text(f"a.wav,{'hello ' * 200}\n")
    write_manifest(root / "a.jsonl", [Utterance("a", root / "a.wav", "hello", 2.0)])
    return root


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["toy"], "train/train-00000.flac"),
        (["kaldi", "{source}"], "source/a-0.flac"),
        (["table", "{source}/long.csv"], "long.jsonl"),
        (["shards", "{source}/a.jsonl"], "recording.000000.tar"),
    ],
)
def test_the_error_for_a_full_disk_names_the_file(source: Path, tmp_path: Path, words: list[str], file: str) -> None:
    out = tmp_path / "out"
    command = [word.format(source=source) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", "from headsync.cli import main; main()", "prepare", *command, str(out)],
        capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT)),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip() == f"{out / file}: File too large"
    assert not (out / file).exists()
    assert not list(out.rglob("*.unfinished"))
