"""The mean of several models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from headsync.cli.app import app
from headsync.errors import ModelError
from headsync.model_folder import CHECKSUMS, CONFIG, VOCABULARY, WEIGHTS, find, load_folder
from headsync.training.average import mean_model


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The shipped model, in half precision, and one in single precision whose every weight is larger by two."""
    other = tmp_path / "other"
    shutil.copytree(find("digits-en"), other)
    (other / CHECKSUMS).unlink()
    save_file({name: tensor.float() + 2 for name, tensor in load_file(other / WEIGHTS).items()}, other / WEIGHTS)
    return find("digits-en"), other


def test_the_mean_lies_in_the_middle_and_loads_by_its_path(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["average", *map(str, pair), "--out", str(tmp_path / "mean")])
    assert result.exit_code == 0
    assert "the mean of 2 models" in result.output
    first, mean = load_file(pair[0] / WEIGHTS), load_file(tmp_path / "mean" / WEIGHTS)
    assert mean.keys() == first.keys()
    assert all(torch.allclose(mean[name], first[name].float() + 1, atol=1e-5) for name in first)
    folder, last = load_folder(tmp_path / "mean"), load_folder(pair[1])
    assert folder.config == last.config
    assert folder.vocabulary == last.vocabulary
    assert str(pair[1]) in (tmp_path / "mean" / "README.md").read_text()


def test_models_that_are_not_stages_of_one_training_are_one_sentence(pair: tuple[Path, Path], tmp_path: Path) -> None:
    models = [load_folder(path) for path in pair]
    for file, old, new in ((CONFIG, "heads = 4", "heads = 2"), (VOCABULARY, "nine", "ten")):
        other = tmp_path / file
        shutil.copytree(pair[1], other)
        (other / file).write_text((other / file).read_text().replace(old, new))
        strange = load_folder(other)
        with pytest.raises(ModelError, match="its network differs from that of"):
            mean_model([models[0], strange], tmp_path / "mean")
    with pytest.raises(ModelError, match="one of the models to average"):
        mean_model(models, pair[1])
    assert not (tmp_path / "mean").exists()
    result = CliRunner().invoke(app, ["average", str(pair[0]), "--out", str(tmp_path / "mean")])
    assert result.exit_code == 2
    assert "two or more models" in result.output


def test_weights_of_another_size_are_one_sentence(pair: tuple[Path, Path], tmp_path: Path) -> None:
    save_file({"encoder.strange": torch.zeros(3)}, pair[1] / WEIGHTS)
    with pytest.raises(ModelError, match="do not fit"):
        mean_model([load_folder(path) for path in pair], tmp_path / "mean")
