"""A toy corpus and a tiny network, made once: what every test of training learns from."""

from __future__ import annotations

from pathlib import Path

import pytest

from headsync.corpora import toy
from training.runs import quietly
from training.tiny import TINY


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


@pytest.fixture(scope="session")
def undisturbed(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    quietly(recipe, folder)
    return folder
