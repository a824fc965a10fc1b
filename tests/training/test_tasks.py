"""The paper's three tasks from corpus to figure: prepare, train a few steps, evaluate; sizes shrunk, nothing else.

LibriSpeech and AIShell-1 from pieces of the real corpora; WSJ made by hand in the form of its discs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import ROOT
from headsync.cli.app import app
from headsync.corpora.manifest import read_manifest, write_manifest
from headsync.model_folder import load_folder
from sphere_files import write_sphere

SMALL = [
    "network.width=16", "network.heads=2", "network.feedforward=32", "network.kernels=4", "encoder.layers=1",
    "decoder.layers=1", "decoding.beam=2", "data.workers=0", "training.epochs=1", "training.untruncated_updates=1",
    "training.batch_frames=4000",
]  # fmt: skip


def headsync(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def few(manifest: Path, count: int) -> Path:
    """The shortest utterances of a manifest, which take the least time."""
    shortest = sorted(read_manifest(manifest), key=lambda utterance: utterance.seconds)[:count]
    write_manifest(manifest.with_name(f"few-{manifest.name}"), shortest)
    return manifest.with_name(f"few-{manifest.name}")


def trained_and_measured(name: str, folder: Path, train: Path, dev: Path, *overrides: str) -> tuple[str, str]:
    """The output of training and evaluation, with the recipe's settings except for the sizes."""
    data = [f"data.train={train}", f"data.dev={dev}", f"training.folder={folder}"]
    said = headsync("train", ROOT / "recipes" / f"{name}.toml", *data, *SMALL, *overrides)
    return said, headsync("evaluate", folder / "model", dev)


def test_librispeech(shared_data: Path, tmp_path: Path) -> None:
    told = headsync("prepare", "librispeech", shared_data / "LibriSpeech", tmp_path)
    assert "only 60 of 28539 utterances and 3 of 251 speakers of train-clean-100 are present" in told
    train, dev = few(tmp_path / "train.jsonl", 6), few(tmp_path / "test-other.jsonl", 2)
    small = ("data.bpe_size=60", "training.accumulate=2")
    _, measured = trained_and_measured("librispeech/hs-dacs", tmp_path / "run", train, dev, *small)
    assert "error rate" in measured
    folder = load_folder(tmp_path / "run" / "model")
    assert (folder.vocabulary.kind, len(folder.vocabulary.tokens)) == ("bpe", 60)
    assert folder.statistics.mean.shape == (83,)


def test_aishell1(shared_data: Path, tmp_path: Path) -> None:
    told = headsync("prepare", "aishell1", shared_data / "data_aishell", tmp_path)
    assert "published 4231: only" in told
    train, dev = few(tmp_path / "train.jsonl", 4), few(tmp_path / "dev.jsonl", 2)
    said, measured = trained_and_measured("aishell1/hs-dacs", tmp_path / "run", train, dev)
    assert "12 utterances" in said  # each at three speeds
    assert "error rate" in measured
    assert "<unk>" in load_folder(tmp_path / "run" / "model").vocabulary.tokens


@pytest.fixture
def discs(tmp_path: Path) -> Path:
    """Four utterances to train on and one to measure, as the discs have them; the sound is noise."""
    root = tmp_path / "discs"
    texts = {"01ic0201": r"It [door_slam] rose", "01ic0202": r"The I\. B\. M\.", "01ic0203": "He's up ,COMMA",
             "01ic0204": '"QUOTE so', "4k0c0301": "It rose Ü"}  # fmt: skip
    for number, (name, text) in enumerate(texts.items()):
        disc = "wsj1/si_dt_20/4k0" if name.startswith("4k0") else "wsj0/si_tr_s/01i"
        sound = np.random.default_rng(number).normal(0, 900, 16_000 + 800 * number).astype(np.int16)
        write_sphere(root / "13-1.1" / disc / f"{name}.wv1", sound, shorten=number == 0)
        dot = root / "13-1.1" / disc / f"{name}.dot"
        dot.write_text(f"{text} ({name})\n", encoding="latin-1")
    listed = {"wsj0/doc/indices/train/tr_s_wv1.ndx": [f"wsj0/si_tr_s/01i/01ic020{n}.wv1" for n in range(1, 5)],
              "wsj1/doc/indices/h1_p0.ndx": ["wsj1/si_dt_20/4k0/4k0c0301.wv1"]}  # fmt: skip
    for index, files in listed.items():
        path = root / "13-34.1" / index
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"11_1_1:{file}\n" for file in files))
    return root


def test_wsj(discs: Path, tmp_path: Path) -> None:
    told = headsync("prepare", "wsj", discs, tmp_path / "data")
    assert "published 52: only 4 of 37416 utterances of train_si284 are present" in told
    train, dev = tmp_path / "data" / "train_si284.jsonl", tmp_path / "data" / "test_dev93.jsonl"
    _, measured = trained_and_measured("wsj/dacs", tmp_path / "run", train, dev)
    assert "error rate" in measured
    vocabulary = load_folder(tmp_path / "run" / "model").vocabulary
    found = next(line for line in told.splitlines() if line.startswith("output classes"))
    assert f"output classes: {vocabulary.size} " in found  # as prepare counted them
    assert {"<NOISE>", "<unk>", "<space>"} <= set(vocabulary.tokens)
    assert vocabulary.encode("É") == vocabulary.encode("<unk>")
    assert vocabulary.decode(vocabulary.encode("IT <NOISE> ROSE")) == "IT ROSE"
