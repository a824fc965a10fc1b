"""Files of a run that were damaged after they were written: the run ends with the same weights, or with an error."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headsync.errors import TrainingError
from headsync.training import train
from headsync.training.checkpoint import previous
from training.runs import assert_complains, log, quietly, updates_kept, weights


@pytest.fixture(scope="module")
def stopped(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of two epochs, with a checkpoint after every update."""
    folder = tmp_path_factory.mktemp("stopped")
    quietly(recipe, folder, "training.epochs=1", "training.checkpoint_seconds=0.0")
    return folder


def cut(path: Path, percent: int) -> None:
    os.truncate(path, path.stat().st_size * percent // 100)


@pytest.mark.parametrize("percent", [0, 5, 50, 95])
def test_a_run_whose_checkpoint_was_cut_resumes_from_the_one_before(
    recipe: Path, stopped: Path, undisturbed: Path, tmp_path: Path, percent: int
) -> None:
    folder, said = tmp_path / "run", list[str]()
    shutil.copytree(stopped, folder)
    checkpoint, before = folder / "checkpoint.safetensors", updates_kept(folder)
    cut(checkpoint, percent)
    train(recipe, [f"training.folder={folder}"], say=said.append)
    assert said[0].startswith(f"{checkpoint}: damaged; replaced by the checkpoint before it, of update ")
    assert int(said[0].split()[-1]) <= before
    assert log(folder) == log(undisturbed)
    assert weights(folder) == weights(undisturbed)


def test_a_run_without_a_good_checkpoint_is_one_sentence(recipe: Path, stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    for path in (folder / "checkpoint.safetensors", previous(folder / "checkpoint.safetensors")):
        cut(path, 50)
    assert_complains(TrainingError, "damaged .* delete it to start the run again", recipe, folder)


def test_damaged_weights_of_an_epoch_are_one_sentence(recipe: Path, stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    cut(folder / "epoch-001.safetensors", 50)
    assert_complains(TrainingError, "weights of an epoch.*cannot be read .* delete this folder", recipe, folder)
