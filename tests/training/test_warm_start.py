"""What a run starts from: another model, or its encoder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headsync.errors import ConfigError
from headsync.model_folder import CONFIG, WEIGHTS, load_folder
from headsync.recipe import dump, load_config
from headsync.training.asr_task import AsrTask, start
from training.runs import Interrupts, assert_complains, quietly, weights


def test_a_run_starts_from_the_weights_and_statistics_of_another(
    recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    overrides = [f"training.folder={tmp_path}", f"training.start_from={undisturbed}/model", "training.seed=5"]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    expected = load_file(undisturbed / "model" / WEIGHTS)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in run.task.model.state_dict().items())
    np.testing.assert_array_equal(run.task.statistics, load_folder(undisturbed / "model").statistics)
    assert run.progress.update == 0


def test_a_run_takes_the_encoder_of_a_model_with_another_decoder(
    recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    other = ["decoder.attention=mocha", "decoder.layers=2", "encoder.centre_frames=6", "training.seed=5"]
    overrides = [f"training.folder={tmp_path}", f"training.start_from={undisturbed}/model", *other]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    expected, found = load_file(undisturbed / "model" / WEIGHTS), run.task.model.state_dict()
    taken = {name for name in expected if name.startswith(("encoder.", "ctc.")) and "distance_bias" not in name}
    assert len(taken) > 10
    assert all(torch.equal(found[name], expected[name]) for name in taken)
    bias = "encoder.layers.0.attention.distance_bias"  # windows are of another size: distances that both have agree
    small, large = sorted((found[bias], expected[bias]), key=lambda table: table.shape[1])
    more = (large.shape[1] - small.shape[1]) // 2
    assert more > 0
    assert torch.equal(large[:, more:-more], small)
    np.testing.assert_array_equal(run.task.statistics, load_folder(undisturbed / "model").statistics)


def test_a_decoder_that_was_not_trained_is_not_taken(recipe: Path, undisturbed: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(undisturbed / "model", tmp_path / "model"))
    config = load_folder(model).config
    (model / CONFIG).write_text(dump(replace(config, training=replace(config.training, ctc_weight=1.0))))
    said: list[str] = []
    overrides = [f"training.folder={tmp_path}/run", f"training.start_from={model}", "training.seed=5"]
    run = start(load_config(recipe, overrides), said.append)
    assert any("only the encoder and its CTC are loaded" in line for line in said)
    expected = load_file(undisturbed / "model" / WEIGHTS)
    same = {name for name, tensor in run.task.model.state_dict().items() if torch.equal(tensor, expected[name])}
    assert "encoder.layers.0.attention.distance_bias" in same
    assert "decoder.embedding.weight" not in same


def test_a_run_that_started_from_another_and_was_stopped_does_not_start_from_it_again(
    recipe: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copytree(undisturbed / "model", tmp_path / "model"))
    overrides = [f"training.start_from={model}", "training.epochs=1"]
    quietly(recipe, tmp_path / "whole", *overrides)
    with monkeypatch.context() as patch:
        interrupts = Interrupts(AsrTask.loss, 4, after=False)
        patch.setattr(AsrTask, "loss", lambda *arguments: interrupts(*arguments))
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path / "stopped", *overrides)
    shutil.rmtree(model)
    quietly(recipe, tmp_path / "stopped", *overrides)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_weights_to_start_from_that_do_not_fit_are_one_sentence(
    recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    for size in ("network.width=32", "encoder.layers=2"):
        overrides = [f"training.start_from={undisturbed}/model", size]
        assert_complains(ConfigError, r"tiny\.toml: training\.start_from = .* do not fit", recipe, tmp_path, *overrides)
    assert_complains(ConfigError, "neither a folder nor", recipe, tmp_path, "training.start_from=nowhere")
