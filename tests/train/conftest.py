"""A toy corpus and a tiny network, made once: what every test of training learns from."""

from __future__ import annotations

from pathlib import Path

import pytest

from headsync.data import toy

TINY = """
[network]
width = 16
heads = 2
feedforward = 32
kernels = 4

[encoder]
layers = 1
left_frames = 4
centre_frames = 4
right_frames = 2
mode = "reuse"

[decoder]
layers = 1
energy_bias = -1.0

[data]
train = "{corpus}/train.jsonl"
dev = "{corpus}/dev.jsonl"
tokens = "words"
workers = 0

[training]
epochs = 2
batch_frames = 400
noam_factor = 0.5
warmup_updates = 10
average = 2
frequency_masks = 1
time_masks = 1
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy.prepare(folder, strings=toy.Counts(train=10, dev=2, test=2))
    return folder


@pytest.fixture(scope="session")
def recipe(corpus: Path) -> Path:
    path = corpus / "tiny.toml"
    path.write_text(TINY.format(corpus=corpus), encoding="utf-8")
    return path
