"""Training on stored encoder frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headsync._atomic_write import write_atomically
from headsync.errors import ConfigError, DataError
from headsync.model_folder import VOCABULARY, WEIGHTS
from headsync.nn.rotary_encoder import RotaryEncoder
from headsync.recipe import load_config
from headsync.text.vocabulary import Vocabulary
from headsync.training.asr_task import AsrTask, build_model, start
from headsync.training.batches import Batches
from headsync.training.losses import joint_loss
from headsync.training.warm_start import take_weights
from training.runs import Interrupts, quietly, weights
from training.softmax_start import write_start

HS_DACS = "decoder.attention=hs-dacs"


@pytest.fixture
def recipe(corpus: Path, tmp_path: Path) -> Path:
    return write_start(corpus, tmp_path)


def task_of(recipe: Path, *overrides: str) -> AsrTask:
    task = start(load_config(recipe, overrides), lambda _: None).task
    assert isinstance(task, AsrTask)
    return task


def test_stored_frames_are_those_of_the_encoder(recipe: Path) -> None:
    task = task_of(recipe, HS_DACS)
    assert task.frames is not None
    spoken = Batches(task.train, task.vocabulary, task.statistics, [[0, 1]], features=task.features)[0]
    with torch.no_grad():
        frames, counts = task.model.encoder.whole(spoken.features_BTF, spoken.lengths_B)
    for row, count in enumerate(counts.tolist()):
        stored = task.frames.read(task.train[row])
        np.testing.assert_allclose(stored, frames[row, :count].numpy(), rtol=2e-3, atol=2e-3)


def test_the_loss_is_that_of_the_whole_network(recipe: Path) -> None:
    task = task_of(recipe, HS_DACS)
    task.model.eval()
    stored = task.train_batches(0)[0]
    spoken = Batches(task.train, task.vocabulary, task.statistics, task.rows(0), features=task.features)[0]
    with torch.no_grad():
        ours = joint_loss(task._output(task.model, stored, 1), stored, task.terms)
        task.model.reads_frames = False
        wanted = joint_loss(task._output(task.model, spoken, 1), spoken, task.terms)
    assert {"layers", "quantity", "attention"} <= set(ours.figures)
    assert float(ours.joint) == pytest.approx(float(wanted.joint), rel=2e-3)


def test_only_the_decoder_is_trained_and_the_next_run_computes_no_frame(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quietly(recipe, tmp_path / "one", HS_DACS)
    before, after = load_file(tmp_path / "start" / WEIGHTS), load_file(model / WEIGHTS)
    same = {name for name in before.keys() & after if torch.equal(before[name], after[name])}
    assert {name for name in after if name.startswith(("encoder.", "ctc.", "decoder.embedding."))} <= same
    assert not {name for name in same if name.startswith("decoder.stack.1.")}
    monkeypatch.delattr(RotaryEncoder, "whole")
    quietly(recipe, tmp_path / "two", "decoder.attention=dacs")


def test_ctc_alone_is_trained_and_keeps_the_decoder_for_later_runs(recipe: Path, tmp_path: Path) -> None:
    model = quietly(recipe, tmp_path / "ctc", "training.ctc_weight=1")
    before, after = load_file(tmp_path / "start" / WEIGHTS), load_file(model / WEIGHTS)
    same = {name for name in after if torch.equal(before[name], after[name])}
    assert {name for name in after if name.startswith(("encoder.", "decoder."))} == same
    task = task_of(recipe, HS_DACS, f"training.start_from={model}", f"training.folder={tmp_path / 'later'}")
    layer = "decoder.stack.1.feedforward.first.weight"
    assert torch.equal(task.model.state_dict()[layer], before[layer])
    assert task.teacher is not None


def test_a_run_that_was_stopped_while_frames_were_computed_continues(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quietly(recipe, tmp_path / "whole", HS_DACS)
    for path in (tmp_path / "frames").glob("*/*"):
        path.unlink()
    monkeypatch.setattr("headsync.training.frame_cache.UTTERANCES", 4)
    with monkeypatch.context() as patch:
        patch.setattr("headsync.training.frame_cache.write_atomically", Interrupts(write_atomically, 3, after=False))
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path / "stopped", HS_DACS)
    assert len(list((tmp_path / "frames").glob("*/*.safetensors"))) == 2
    quietly(recipe, tmp_path / "stopped", HS_DACS)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_resumed_run_has_the_weights_of_an_undisturbed_one(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quietly(recipe, tmp_path / "whole", HS_DACS)
    with monkeypatch.context() as patch:
        interrupts = Interrupts(AsrTask.loss, 4, after=False)
        patch.setattr(AsrTask, "loss", lambda *arguments: interrupts(*arguments))
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path / "stopped", HS_DACS)
    quietly(recipe, tmp_path / "stopped", HS_DACS)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_damaged_file_and_settings_without_effect_are_refused(recipe: Path, tmp_path: Path) -> None:
    task_of(recipe)
    path = next((tmp_path / "frames").glob("*/*.safetensors"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"damaged.*delete it"):
        task_of(recipe)
    with pytest.raises(ConfigError, match="masks and warping"):
        load_config(recipe, ["training.time_mask_frames=4"])
    with pytest.raises(ConfigError, match="frame_cache requires start_from"):
        load_config(recipe, ["training.start_from="])


def test_ctc_takes_and_trains_the_embedding_that_is_its_output_layer(recipe: Path, tmp_path: Path) -> None:
    """Also if the decoder of the start does not fit, and the encoder is trained by CTC."""
    config = load_config(
        recipe, ["training.frame_cache=", "training.match_updates=0", "training.ctc_weight=1", "decoder.layers=3"]
    )
    source = Path(config.training.start_from)
    vocabulary = Vocabulary.load(source / VOCABULARY)
    model = build_model(config, vocabulary)
    assert not take_weights(model, vocabulary, str(source), lambda _: None)
    assert torch.equal(model.decoder.embedding.weight, load_file(source / WEIGHTS)["decoder.embedding.weight"])
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {n for n in trained if n.startswith("decoder.")} == {"decoder.embedding.weight"}
