"""The loop: its phases, when it stops, what it keeps, and that stopping it anywhere changes nothing."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headsync.audio import read_audio
from headsync.config import Config, DecoderConfig, TrainingConfig
from headsync.data.manifest import Utterance, read_manifest, write_manifest
from headsync.errors import AudioError, ConfigError, DataError, TrainingError
from headsync.folder import CARD, WEIGHTS
from headsync.recipe import load_config
from headsync.recognizer import Recognizer
from headsync.train import course, loop
from headsync.train.checkpoint import Progress, save_checkpoint
from headsync.train.data import Batches, Share, load
from headsync.train.evaluate import DevResult
from headsync.train.loop import Run, epoch_rows, start, train_batches, update
from train.runs import Interrupts, assert_complains, log, quietly, weights


def epochs_kept(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("epoch-")) for path in folder.glob("epoch-*.safetensors"))


@pytest.fixture
def dev_losses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the development set bring the given losses, epoch by epoch."""

    def script(*losses: float) -> None:
        left: Iterator[float] = iter(losses)
        monkeypatch.setattr(loop, "evaluate_dev", lambda *_: DevResult(next(left), 0.5, 0.5))

    return script


def thresholds(run: Run) -> set[float]:
    return {layer.cross.mechanism.threshold for layer in run.model.decoder.layers}


def test_no_step_is_halted_up_to_the_update_that_is_set_and_as_set_after_it(recipe: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}", "training.untruncated_updates=2", "decoder.threshold=0.75"]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    batch = Batches(run.train, run.vocabulary, run.statistics, epoch_rows(run))[0]
    seen = []
    for _ in range(4):
        halt = float(update(run, Share.whole(batch)).halt)
        seen.append((run.progress.update, thresholds(run), halt == 1.0))
    free, halting = {math.inf}, {0.75}
    assert seen == [(1, free, True), (2, free, True), (3, halting, False), (4, halting, False)]


def test_with_ctc_alone_the_decoder_rests_and_the_encoder_learns_the_same(recipe: Path, tmp_path: Path) -> None:
    def learned(decodes: bool) -> dict[str, torch.Tensor]:
        overrides = [f"training.folder={tmp_path / str(decodes)}", "training.ctc_weight=1"]
        run = start(load_config(recipe, overrides), say=lambda _: None)
        assert not run.model.decodes
        run.model.decodes = decodes
        before = {name: value.clone() for name, value in run.model.decoder.state_dict().items()}
        for share in load(train_batches(run), 0, 0):
            update(run, share)
        assert all(torch.equal(value, before[name]) for name, value in run.model.decoder.state_dict().items())
        return run.model.state_dict()

    resting, at_work = learned(False), learned(True)
    assert all(torch.equal(resting[name], at_work[name]) for name in resting)


def test_halt_and_mass_of_every_update_are_logged(recipe: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path, "training.untruncated_updates=3", "training.epochs=1", "decoder.energy_bias=0.0")
    updates = [entry for entry in log(tmp_path) if "loss" in entry]
    assert [entry["update"] for entry in updates] == list(range(1, len(updates) + 1))
    assert len(updates) > 4
    for entry in updates:
        free = entry["update"] <= 3
        assert (entry["halt"] == 1.0) == free
        # A bias of 0 gives every frame about half: a head gathers 1 in a few frames, and far more when never halted.
        assert (entry["mass"] > 3) == free
        assert {"loss", "ctc", "attention", "error"} <= set(entry)


@pytest.mark.parametrize("untruncated", [0, 100])
def test_dev_is_measured_as_the_last_update_was_trained_even_by_a_run_that_was_resumed_for_it(
    recipe: Path, tmp_path: Path, untruncated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def stopped(run: Run, *_: object) -> None:
        raise KeyboardInterrupt

    def measured(run: Run, report: Any) -> None:
        finish(run, report)
        seen.append(thresholds(run))

    finish = course.finish_epoch
    overrides = ["training.epochs=1", f"training.untruncated_updates={untruncated}"]
    monkeypatch.setattr(course, "finish_epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        quietly(recipe, tmp_path, *overrides)
    monkeypatch.setattr(course, "finish_epoch", measured)
    quietly(recipe, tmp_path, *overrides)
    assert seen == [{math.inf} if untruncated else {1.0}]


def test_the_averaged_model_is_the_mean_of_the_best_epochs(
    recipe: Path, tmp_path: Path, dev_losses: Callable[..., None]
) -> None:
    dev_losses(0.4, 0.9, 0.3, 0.5)
    model = quietly(recipe, tmp_path, "training.epochs=4", "training.average=2")
    assert epochs_kept(tmp_path) == [1, 3]
    first, third = (load_file(tmp_path / f"epoch-{epoch:03d}.safetensors") for epoch in (1, 3))
    mean = load_file(model / WEIGHTS)
    assert any(not torch.equal(first[name], third[name]) for name in mean)
    for name in mean:
        torch.testing.assert_close(mean[name], (first[name] + third[name]) / 2, rtol=1e-6, atol=1e-7)


def test_epochs_without_halting_do_not_compete_with_those_that_halt(
    recipe: Path, tmp_path: Path, dev_losses: Callable[..., None]
) -> None:
    """A step that may see everything has the easier task, so its loss says nothing."""
    updates = len(epoch_rows(start(load_config(recipe, [f"training.folder={tmp_path}"]), say=lambda _: None)))
    for first_phase in (updates + 1, 2 * updates):  # it ends within the second epoch, or between two
        folder = tmp_path / str(first_phase)
        dev_losses(0.1, 0.2, 0.9, 0.8)
        quietly(
            recipe, folder, "training.epochs=4", "training.average=4", f"training.untruncated_updates={first_phase}"
        )
        assert epochs_kept(folder) == ([2, 3, 4] if first_phase == updates + 1 else [3, 4])


def test_patience_stops_a_run_that_gets_no_better(
    recipe: Path, tmp_path: Path, dev_losses: Callable[..., None]
) -> None:
    dev_losses(0.5, 0.4, 0.6, 0.4, 0.1)
    quietly(recipe, tmp_path, "training.epochs=9", "training.patience=2")
    assert [entry["epoch"] for entry in log(tmp_path) if "dev" in entry] == [1, 2, 3, 4]
    before = weights(tmp_path)
    quietly(recipe, tmp_path, "training.epochs=9", "training.patience=2")  # and it stays stopped
    assert weights(tmp_path) == before


def test_no_patience_means_all_epochs(recipe: Path, tmp_path: Path, dev_losses: Callable[..., None]) -> None:
    dev_losses(0.1, 0.2, 0.3, 0.4)
    quietly(recipe, tmp_path, "training.epochs=4", "training.patience=0")
    assert len([entry for entry in log(tmp_path) if "dev" in entry]) == 4


def test_patience_waits_for_the_first_phase_to_end(
    recipe: Path, tmp_path: Path, dev_losses: Callable[..., None]
) -> None:
    dev_losses(0.1, 0.2, 0.3)
    quietly(recipe, tmp_path, "training.epochs=3", "training.patience=1", "training.untruncated_updates=100")
    assert len([entry for entry in log(tmp_path) if "dev" in entry]) == 3


def test_a_run_that_never_leaves_its_first_phase_is_warned_of(recipe: Path, tmp_path: Path) -> None:
    said: list[str] = []
    overrides = [f"training.folder={tmp_path}", "training.untruncated_updates=100"]
    start(load_config(recipe, overrides), said.append)
    assert "fall into the first phase, in which no step is halted" in said[-1]


def test_heads_that_would_count_before_they_know_anything_are_warned_of(recipe: Path, tmp_path: Path) -> None:
    for name, more in {"a": [], "b": ["training.untruncated_updates=1"], "c": ["training.quantity_weight=0"]}.items():
        said: list[str] = []
        settings = ["decoder.attention=mma-mocha", "training.untruncated_updates=0", *more]
        start(load_config(recipe, [f"training.folder={tmp_path / name}", *settings]), said.append)
        assert any("stop on the first frame" in line for line in said) == (name == "a")


def test_a_trained_model_streams(undisturbed: Path, corpus: Path) -> None:
    recognizer = Recognizer.load(undisturbed / "model")
    assert (undisturbed / "model" / CARD).is_file()
    for utterance in read_manifest(corpus / "test.jsonl"):
        samples, rate = read_audio(utterance.audio)
        finals = recognizer.transcribe(samples, rate)
        known = set(recognizer.vocabulary.tokens)
        assert all(set(final.text.split()) <= known for final in finals)


def test_training_lowers_the_loss(recipe: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path, "training.epochs=6", "network.dropout=0.0")
    losses = [entry["loss"] for entry in log(tmp_path) if "loss" in entry]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(
    recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    quietly(recipe, tmp_path / "again")
    quietly(recipe, tmp_path / "other", "training.seed=2")
    assert weights(tmp_path / "again") == weights(undisturbed)
    assert weights(tmp_path / "other") != weights(undisturbed)


def test_a_run_that_is_done_says_so(recipe: Path, undisturbed: Path) -> None:
    said: list[str] = []
    loop.train(recipe, [f"training.folder={undisturbed}"], say=said.append)
    assert (
        said[0] == f"this run is done: its model is in {undisturbed}/model; with more epochs or patience it would go on"
    )


def test_a_run_made_longer_goes_on_as_if_it_had_always_been_so(recipe: Path, undisturbed: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path, "training.epochs=1")
    quietly(recipe, tmp_path, "training.epochs=2")
    assert weights(tmp_path) == weights(undisturbed)
    assert log(tmp_path) == log(undisturbed)


def test_parts_of_a_pass_are_measured_and_hold_every_utterance_once(recipe: Path, tmp_path: Path) -> None:
    run = start(load_config(recipe, [f"training.folder={tmp_path}", "training.epochs_per_pass=3"]), say=lambda _: None)
    passes = []
    for whole_pass in range(2):
        indices = []
        for part in range(3):
            run.progress.epoch = 3 * whole_pass + part
            indices += [tuple(batch) for batch in epoch_rows(run)]
        assert sorted(index for batch in indices for index in batch) == list(range(len(run.train)))
        passes.append(indices)
    assert passes[0] != passes[1]


def test_only_the_first_pass_comes_in_order_of_length(recipe: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}", "training.shortest_first=true", "training.epochs_per_pass=2"]
    run = start(load_config(recipe, overrides), say=lambda _: None)

    def seconds_of_pass(number: int) -> list[float]:
        batches = []
        for run.progress.epoch in (2 * number, 2 * number + 1):
            batches += epoch_rows(run)
        return [max(run.train[index].seconds for index in batch) for batch in batches]

    # Lengths are scattered by up to a tenth before they are put in order, so that neighbours change.
    first, second = seconds_of_pass(0), seconds_of_pass(1)
    assert all(later > 0.8 * earlier for earlier, later in itertools.pairwise(first))
    assert any(later < 0.8 * earlier for earlier, later in itertools.pairwise(second))


def test_energies_grow_sharper_after_the_first_phase() -> None:
    config = Config(
        decoder=DecoderConfig(sharpness=5.0), training=TrainingConfig(untruncated_updates=10, sharpen_updates=20)
    )
    assert [loop.sharpness_of(config, number) for number in (1, 10, 11, 20, 30, 40)] == [1.0, 1.0, 1.2, 3.0, 5.0, 5.0]
    at_once = replace(config, training=TrainingConfig(untruncated_updates=10))
    assert [loop.sharpness_of(at_once, number) for number in (10, 11)] == [1.0, 5.0]


BEFORE, AFTER = False, True


@pytest.mark.parametrize(
    ("what", "at", "after"),
    [
        ("joint_loss", 1, BEFORE), ("joint_loss", 4, AFTER), ("update", 4, BEFORE), ("update", 4, AFTER),
        ("evaluate_dev", 1, BEFORE), ("evaluate_dev", 1, AFTER), ("save_weights", 1, AFTER), ("write_model", 1, AFTER),
        ("save_checkpoint", 1, BEFORE), ("save_checkpoint", 1, AFTER),
    ],
)  # fmt: skip
def test_stopped_by_hand_anywhere_it_goes_on_as_if_it_never_was(
    recipe: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: int, after: bool
) -> None:
    with monkeypatch.context() as patch:
        module = loop if hasattr(loop, what) else course
        patch.setattr(module, what, Interrupts(getattr(module, what), at, after))
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path)
    quietly(recipe, tmp_path)
    assert weights(tmp_path) == weights(undisturbed)
    assert log(tmp_path) == log(undisturbed)


def test_stopped_in_the_middle_of_a_step_of_adam_it_does_not_keep_half_of_it(
    recipe: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", Interrupts(torch.optim.Adam.step, 4, after=True).__call__)
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path, "training.checkpoint_seconds=0.0")
    quietly(recipe, tmp_path)
    assert weights(tmp_path) == weights(undisturbed)
    assert log(tmp_path) == log(undisturbed)


def test_at_every_checkpoint_the_log_on_disk_is_as_far(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a kill right after it loses no line: what comes later is logged again, what is missing never would be."""
    seen = []

    def saved(path: Path, model: Any, adam: Any, progress: Progress) -> None:
        save_checkpoint(path, model, adam, progress)
        entries = log(tmp_path)
        assert len([e for e in entries if "loss" in e]) == progress.update
        assert len([e for e in entries if "dev" in e]) == progress.epoch
        seen.append(progress.update)

    monkeypatch.setattr(course, "save_checkpoint", saved)
    quietly(recipe, tmp_path, "training.checkpoint_seconds=0.0")
    assert len(seen) > seen[-1]  # after every update, and after every epoch


def test_ctrl_c_loses_no_update(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "joint_loss", Interrupts(loop.joint_loss, 4, after=False))
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path)
    said: list[str] = []
    start(load_config(recipe, [f"training.folder={tmp_path}"]), said.append)
    assert "going on after update 3, epoch 1" in said


def changed(corpus: Path, folder: Path, change: Callable[[Sequence[Utterance]], Sequence[Utterance]]) -> str:
    write_manifest(folder / "changed.jsonl", change(read_manifest(corpus / "train.jsonl")))
    return str(folder / "changed.jsonl")


def test_utterances_too_short_for_their_text_are_reported_and_left_out(
    recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    def shorten(utterances: Sequence[Utterance]) -> Sequence[Utterance]:
        return [replace(u, seconds=0.05) if i < 6 else u for i, u in enumerate(utterances)]

    said: list[str] = []
    manifest = changed(corpus, tmp_path, shorten)
    overrides = [f"training.folder={tmp_path}/run", f"data.train={manifest}"]
    run = start(load_config(recipe, overrides), said.append)
    assert len(run.train) == 4
    assert said[0] == (
        f"{manifest}: 6 utterances are too short for their text and are left out: "
        "train-00000, train-00001, train-00002, train-00003, train-00004, ..."
    )
    all_short = changed(corpus, tmp_path, lambda utterances: [replace(u, seconds=0.05) for u in utterances])
    assert_complains(DataError, "no utterance to work on", recipe, tmp_path / "run", f"data.dev={all_short}")


def test_what_is_wrong_with_the_data_is_told_before_anything_is_written(
    recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    strange = changed(corpus, tmp_path, lambda utterances: [replace(u, text="ba xyz") for u in utterances])
    for kind, match, override in [
        (ConfigError, r"tiny\.toml: data\.train is not set", "data.train="),
        (DataError, r"gone\.jsonl: there is no such manifest", "data.dev=gone.jsonl"),
        (DataError, r"empty\.jsonl: no utterance to work on", f"data.train={empty}"),
        (DataError, "the word 'xyz' in 'ba xyz' is not in the vocabulary", f"data.dev={strange}"),
        (ConfigError, r'tiny\.toml: .*"hsdacs" is not known; did you mean "hs-dacs"', "decoder.attention=hsdacs"),
    ]:
        assert_complains(kind, match, recipe, tmp_path / "run", override)
        assert not (tmp_path / "run").exists()


def test_a_recording_that_is_gone_is_one_sentence(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    overrides = [f"data.train={copy}/train.jsonl", "training.epochs=1"]
    quietly(recipe, tmp_path / "run", *overrides)
    (copy / "train" / "train-00003.flac").unlink()
    assert_complains(AudioError, "train-00003.flac", recipe, tmp_path / "run", overrides[0], "training.epochs=2")


def test_a_gradient_that_is_no_number_ends_the_run_in_one_sentence(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the gradient is no longer a number; lower training"):
        quietly(recipe, tmp_path, "training.noam_factor=1e30", "training.warmup_updates=1")


def test_statistics_are_measured_once_and_never_left_half_written(
    recipe: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(SystemExit):
            quietly(recipe, tmp_path)
    quietly(recipe, tmp_path)
    assert weights(tmp_path) == weights(undisturbed)
    said: list[str] = []
    start(load_config(recipe, [f"training.folder={tmp_path}"]), said.append)
    assert not any("measuring" in line for line in said)
