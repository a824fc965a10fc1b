"""Updates that train each layer of a decoder on the inputs of the teacher's layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headsync.attention import MECHANISMS
from headsync.errors import ConfigError
from headsync.model_folder import WEIGHTS
from headsync.recipe import load_config
from headsync.training.asr_task import AsrTask, start
from headsync.training.bucketing import Split
from headsync.training.losses import joint_loss
from headsync.training.trainer import Trainer
from training.runs import Interrupts, log, quietly, weights
from training.softmax_start import write_start

ATTENDING = [name for name in MECHANISMS if name != "cif"]
FOR_TOKENS = "decoder.embedding.weight"


@pytest.fixture
def recipe(corpus: Path, tmp_path: Path) -> Path:
    return write_start(corpus, tmp_path)


def started(recipe: Path, *overrides: str) -> tuple[Trainer[Any, Any], AsrTask]:
    run = start(load_config(recipe, overrides), lambda _: None)
    assert isinstance(run.task, AsrTask)
    run.task.model.train()
    return run, run.task


def gradients(task: AsrTask, layer: int) -> dict[str, Tensor]:
    """The gradients of the first update in one layer, without random numbers of the mechanism."""
    task.model.zero_grad()
    torch.manual_seed(1)
    task.loss(task.model, task.train_batches(0)[0], 1).joint.backward()
    named = task.model.decoder.layers[layer].named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


@pytest.mark.parametrize("attention", ATTENDING)
def test_the_gradient_of_a_layer_depends_on_that_layer_alone(recipe: Path, attention: str) -> None:
    _, task = started(recipe, f"decoder.attention={attention}")
    decoder = task.model.decoder
    if attention in ("softmax", "triggered", "bs-dec"):  # the weights of the teacher have no gradient
        with torch.no_grad():
            decoder.layers[1].feedforward.second.weight *= 1.1
    before = gradients(task, 1)
    assert any(gradient.any() for gradient in before.values())
    with torch.no_grad():
        for weight in (*decoder.layers[0].parameters(), *decoder.norm.parameters(), decoder.embedding.weight):
            weight *= 1.5
    after = gradients(task, 1)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert decoder.norm.weight.grad is None


def test_the_figures_of_layerwise_updates_have_no_cross_entropy(recipe: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path / "run", "decoder.attention=hs-dacs", "training.ctc_weight=0.3")
    updates = [entry for entry in log(tmp_path / "run") if "dev" not in entry]
    for entry in updates[:3]:
        assert entry.keys() == {"update", "loss", "ctc", "quantity", "layers"}
        assert entry["loss"] == pytest.approx(0.3 * entry["ctc"] + 0.05 * entry["quantity"] + entry["layers"])
    assert {"attention", "layers", "error"} <= updates[3].keys()


def composed(task: AsrTask) -> float:
    """The variance of the teacher's outputs that the outputs of the composed layers leave unexplained."""
    batch = task.train_batches(0)[0]
    task.model.eval()
    with torch.no_grad():
        figures = joint_loss(task._output(task.model, batch, 1), batch, task.terms).figures
    task.model.train()
    return float(figures["layers"])


@pytest.mark.parametrize("attention", ["dacs", "hs-dacs"])
def test_layerwise_updates_bring_the_composed_decoder_closer_to_the_teacher(recipe: Path, attention: str) -> None:
    given = (f"decoder.attention={attention}", "decoder.reach=0.0", "training.match_updates=100")
    run, task = started(recipe, *given, "training.noam_factor=0.1", "training.epochs=10")
    before = composed(task)
    for epoch in range(5):
        for share in task.batches(run.progress, Split())[1]:
            run.update(share)
        run.progress.epoch, run.progress.batch = epoch + 1, 0
    assert run.progress.update == 30
    assert composed(task) < 0.8 * before


def test_dropout_is_disabled_in_layerwise_updates_alone(recipe: Path) -> None:
    _, task = started(recipe, "decoder.attention=triggered", "network.dropout=0.5")
    batch = task.train_batches(0)[0]

    def drawn(update: int) -> set[float]:
        return {float(task.loss(task.model, batch, update).joint.detach()) for _ in range(2)}

    assert len(drawn(1)) == 1
    assert all(module.training for module in task.model.modules())
    assert len(drawn(4)) == 2


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_resumed_run_has_the_weights_of_an_undisturbed_one(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    given = "decoder.attention=hs-dacs"
    quietly(recipe, tmp_path / "whole", given)
    with monkeypatch.context() as patch:
        interrupts = Interrupts(AsrTask.loss, at, after=False)
        patch.setattr(AsrTask, "loss", lambda *arguments: interrupts(*arguments))
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path / "stopped", given)
    quietly(recipe, tmp_path / "stopped", given)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    assert log(tmp_path / "stopped") == log(tmp_path / "whole")


def test_cif_has_no_layers_to_match(recipe: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = start(load_config(recipe, ["decoder.attention=cif", f"training.folder={tmp_path}"]), said.append)
    assert isinstance(run.task, AsrTask)
    assert run.task.teacher is None
    assert any("layers are not matched: not all layers of cif attend to frames" in line for line in said)


def test_matching_requires_stored_frames(recipe: Path) -> None:
    with pytest.raises(ConfigError, match="match_updates requires frame_cache"):
        load_config(recipe, ["training.frame_cache="])


@pytest.mark.parametrize(("updates", "same"), [(1, True), (0, False)])
def test_the_embedding_is_kept_if_layers_are_matched(recipe: Path, tmp_path: Path, updates: int, same: bool) -> None:
    model = quietly(recipe, tmp_path / "run", "training.ctc_weight=0.3", f"training.match_updates={updates}")
    before, after = (load_file(folder / WEIGHTS)[FOR_TOKENS] for folder in (tmp_path / "start", model))
    assert torch.equal(before, after) == same
