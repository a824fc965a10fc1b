"""The loop: its phases, when it stops, what it keeps, and that stopping it anywhere changes nothing."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headsync.corpora.manifest import Utterance, read_manifest, write_manifest
from headsync.errors import AudioError, ConfigError, DataError, TrainingError
from headsync.frontend.audio import read_audio
from headsync.model_folder import CARD, CHECKSUMS, WEIGHTS
from headsync.recipe import load_config
from headsync.recognizer import Recognizer
from headsync.training import train, trainer
from headsync.training.asr_task import AsrTask, DevResult, start
from headsync.training.batches import Batches, load
from headsync.training.bucketing import Share
from headsync.training.checkpoint import TrainingProgress, save_checkpoint
from headsync.training.trainer import Trainer
from training.runs import Interrupts, assert_complains, log, quietly, weights


def epochs_kept(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("epoch-")) for path in folder.glob("epoch-*.safetensors"))


@pytest.fixture
def dev_losses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the development set bring the given losses, epoch by epoch."""

    def script(*losses: float) -> None:
        left: Iterator[float] = iter(losses)
        monkeypatch.setattr(AsrTask, "evaluate", lambda *_: DevResult(next(left), 0.5, 0.5))

    return script


@pytest.fixture
def dev_errors(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the loss of the development set fall, and the errors of the decoder be the given ones."""

    def script(*errors: float) -> None:
        left = iter([DevResult(1.0 / n, error, 0.5) for n, error in enumerate(errors, 1)])
        monkeypatch.setattr(AsrTask, "evaluate", lambda *_: next(left))

    return script


def halts(run: Trainer[Any, Any]) -> set[bool]:
    return {layer.cross.mechanism.phase.halts for layer in run.task.model.decoder.layers}


def test_no_step_is_halted_up_to_the_update_that_is_set_and_as_set_after_it(recipe: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}", "training.untruncated_updates=2", "decoder.threshold=0.75"]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    task, seen = run.task, []
    batch = Batches(task.train, task.vocabulary, task.statistics, task.rows(0))[0]
    for _ in range(4):
        halt = run.update(Share([batch], [1.0], 0))["halt"]
        seen.append((run.progress.update, halts(run), halt == 1.0))
    assert seen == [(1, {False}, True), (2, {False}, True), (3, {True}, False), (4, {True}, False)]


def test_with_ctc_alone_the_decoder_rests_and_the_encoder_learns_the_same(recipe: Path, tmp_path: Path) -> None:
    def learned(decodes: bool) -> dict[str, torch.Tensor]:
        overrides = [f"training.folder={tmp_path / str(decodes)}", "training.ctc_weight=1"]
        run = start(load_config(recipe, overrides), say=lambda _: None)
        model = run.task.model
        assert not model.decodes
        model.decodes = decodes
        before = {name: value.clone() for name, value in model.decoder.state_dict().items()}
        for share in load(run.task.train_batches(0), 0, 0):
            run.update(share)
        assert all(torch.equal(value, before[name]) for name, value in model.decoder.state_dict().items())
        return model.state_dict()

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

    def stopped(run: Trainer[Any, Any]) -> None:
        raise KeyboardInterrupt

    def evaluated(run: Trainer[Any, Any]) -> Any:
        result = evaluate(run)
        seen.append(halts(run))
        return result

    evaluate = Trainer.evaluate
    overrides = ["training.epochs=1", f"training.untruncated_updates={untruncated}"]
    monkeypatch.setattr(Trainer, "evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        quietly(recipe, tmp_path, *overrides)
    monkeypatch.setattr(Trainer, "evaluate", evaluated)
    quietly(recipe, tmp_path, *overrides)
    assert seen == [{not untruncated}]


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


def test_the_averaged_model_is_the_mean_of_the_last_epochs_if_the_recipe_asks(
    recipe: Path, tmp_path: Path, dev_losses: Callable[..., None]
) -> None:
    dev_losses(0.1, 0.4, 0.2, 0.3, 0.5)
    settings = ["training.epochs=5", "training.average=2", "training.average_of=last"]
    model = quietly(recipe, tmp_path, *settings)
    assert epochs_kept(tmp_path) == [4, 5]
    kept = [load_file(tmp_path / f"epoch-{epoch:03d}.safetensors") for epoch in (4, 5)]
    for name, weight in load_file(model / WEIGHTS).items():
        torch.testing.assert_close(weight, (kept[0][name] + kept[1][name]) / 2)
    assert "the 2 last averaged" in (model / CARD).read_text()


def test_if_the_last_are_averaged_patience_counts_from_the_epoch_with_the_fewest_errors_of_the_decoder(
    recipe: Path, tmp_path: Path, dev_errors: Callable[..., None]
) -> None:
    """The loss falls all the time."""
    dev_errors(0.3, 0.1, 0.4, 0.2, 0.5)
    settings = ["training.epochs=9", "training.patience=3", "training.average=2", "training.average_of=last"]
    quietly(recipe, tmp_path, *settings)
    assert len([entry for entry in log(tmp_path) if "dev" in entry]) == 5
    assert epochs_kept(tmp_path) == [4, 5]
    said: list[str] = []
    train(recipe, [f"training.folder={tmp_path}", *settings], say=said.append)
    assert any("this run is finished" in line for line in said)


def test_epochs_without_halting_do_not_compete_with_those_that_halt(
    recipe: Path, tmp_path: Path, dev_losses: Callable[..., None]
) -> None:
    """A step that attends to all frames has the easier task, so its loss is not comparable."""
    updates = len(start(load_config(recipe, [f"training.folder={tmp_path}"]), say=lambda _: None).task.rows(0))
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


def test_a_run_without_halting_is_a_warning(recipe: Path, tmp_path: Path) -> None:
    said: list[str] = []
    overrides = [f"training.folder={tmp_path}", "training.untruncated_updates=100"]
    start(load_config(recipe, overrides), said.append)
    assert said[-1].startswith("no step will halt: the run has about ")


@pytest.mark.parametrize(
    ("attention", "first", "counts"), [("mma-mocha", 0, False), ("mma-mocha", 1, True), ("cif", 0, True)]
)
def test_mma_heads_count_only_after_a_first_phase(
    recipe: Path, tmp_path: Path, attention: str, first: int, counts: bool
) -> None:
    settings = [f"decoder.attention={attention}", f"training.untruncated_updates={first}"]
    run: Any = start(load_config(recipe, [f"training.folder={tmp_path}", *settings]), print)
    assert ("quantity" in [term.name for term in run.task.terms]) is counts


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


def test_the_moonshine_family_learns_and_streams(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    family = ["network.family=moonshine", "decoder.frame_positions=false", "training.frequency_mask_bins=0"]
    quietly(recipe, tmp_path, *family, "training.epochs=4", "network.dropout=0.0", "decoder.reach=1.1")
    losses = [entry["loss"] for entry in log(tmp_path) if "loss" in entry]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])
    recognizer = Recognizer.load(tmp_path / "model")
    for utterance in read_manifest(corpus / "test.jsonl"):
        recognizer.transcribe(*read_audio(utterance.audio))


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(
    recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    quietly(recipe, tmp_path / "again")
    quietly(recipe, tmp_path / "other", "training.seed=2")
    assert weights(tmp_path / "again") == weights(undisturbed)
    assert weights(tmp_path / "other") != weights(undisturbed)


def test_a_finished_run_prints_that_it_is_finished(recipe: Path, undisturbed: Path) -> None:
    said: list[str] = []
    train(recipe, [f"training.folder={undisturbed}"], say=said.append)
    assert said[0] == "this run is finished; raise training.epochs or training.patience to continue it"


def test_a_finished_run_started_again_keeps_the_checksums_of_its_model(recipe: Path, tmp_path: Path) -> None:
    model = quietly(recipe, tmp_path, "training.epochs=1")
    before = (model / CHECKSUMS).read_bytes()
    assert WEIGHTS.encode() in before
    quietly(recipe, tmp_path, "training.epochs=1")
    assert (model / CHECKSUMS).read_bytes() == before


def test_training_ends_with_the_model_folder_and_a_command_to_try_it(
    recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    model = train(recipe, [f"training.folder={tmp_path}/a run", "training.epochs=1"], say=said.append)
    assert said[-2] == f"model: {model}"
    assert shlex.split(said[-1]) == ["next:", "headsync", "evaluate", str(model), f"{corpus}/dev.jsonl"]


def test_an_extended_run_equals_a_longer_one(recipe: Path, undisturbed: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path, "training.epochs=1")
    quietly(recipe, tmp_path, "training.epochs=2")
    assert weights(tmp_path) == weights(undisturbed)
    assert log(tmp_path) == log(undisturbed)


def test_parts_of_a_pass_are_measured_and_hold_every_utterance_once(recipe: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}", "training.epochs_per_pass=3"]
    task: Any = start(load_config(recipe, overrides), say=lambda _: None).task
    passes = []
    for whole_pass in range(2):
        indices = []
        for part in range(3):
            indices += [tuple(batch) for batch in task.rows(3 * whole_pass + part)]
        assert sorted(index for batch in indices for index in batch) == list(range(len(task.train)))
        passes.append(indices)
    assert passes[0] != passes[1]


def test_energies_grow_sharper_after_the_first_phase(recipe: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}", "decoder.sharpness=5.0", "training.untruncated_updates=10"]
    rising: Any = start(load_config(recipe, [*overrides, "training.warmup_updates=10"]), say=lambda _: None).task
    phases = [rising.phase(number) for number in (1, 10, 11, 20, 30, 40)]
    assert [phase.halts for phase in phases] == [False, False, True, True, True, True]
    assert [phase.sharpness for phase in phases] == [1.0, 1.0, 1.2, 3.0, 5.0, 5.0]


BEFORE, AFTER = False, True


@pytest.mark.parametrize(
    ("where", "what", "at", "after"),
    [
        (AsrTask, "loss", 1, BEFORE), (AsrTask, "loss", 4, AFTER),
        (Trainer, "update", 4, BEFORE), (Trainer, "update", 4, AFTER),
        (AsrTask, "evaluate", 1, BEFORE), (AsrTask, "evaluate", 1, AFTER),
        (trainer, "save_weights", 1, AFTER), (Trainer, "write_model", 1, AFTER),
        (trainer, "save_checkpoint", 1, BEFORE), (trainer, "save_checkpoint", 1, AFTER),
    ],
)  # fmt: skip
def test_an_interrupted_run_ends_like_an_undisturbed_one(
    recipe: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    where: Any, what: str, at: int, after: bool,
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        interrupts = Interrupts(getattr(where, what), at, after)
        patch.setattr(where, what, lambda *arguments: interrupts(*arguments))
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

    def saved(path: Path, model: Any, adam: Any, progress: TrainingProgress) -> None:
        save_checkpoint(path, model, adam, progress)
        entries = log(tmp_path)
        assert len([e for e in entries if "loss" in e]) == progress.update
        assert len([e for e in entries if "dev" in e]) == progress.epoch
        seen.append(progress.update)

    monkeypatch.setattr(trainer, "save_checkpoint", saved)
    quietly(recipe, tmp_path, "training.checkpoint_seconds=0.0")
    assert len(seen) > seen[-1]  # after every update, and after every epoch


def test_ctrl_c_loses_no_update(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupts = Interrupts(AsrTask.loss, 4, after=False)
        patch.setattr(AsrTask, "loss", lambda *arguments: interrupts(*arguments))
        with pytest.raises(KeyboardInterrupt):
            quietly(recipe, tmp_path)
    said: list[str] = []
    start(load_config(recipe, [f"training.folder={tmp_path}"]), said.append)
    assert "resuming after update 3, epoch 1" in said


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
    assert len(run.task.train) == 4
    assert said[0] == (
        f"{manifest}: left out 6 utterances, too short for their text: "
        "train-00000, train-00001, train-00002, train-00003, train-00004 and 1 more"
    )
    all_short = changed(corpus, tmp_path, lambda utterances: [replace(u, seconds=0.05) for u in utterances])
    assert_complains(DataError, "no usable utterance", recipe, tmp_path / "run", f"data.dev={all_short}")


def test_data_errors_are_raised_before_anything_is_written(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    strange = changed(corpus, tmp_path, lambda utterances: [replace(u, text="ba xyz") for u in utterances])
    for kind, match, override in [
        (ConfigError, r"tiny\.toml: data\.train is not set", "data.train="),
        (DataError, r"gone\.jsonl: no such manifest", "data.dev=gone.jsonl"),
        (DataError, r"empty\.jsonl: no usable utterance", f"data.train={empty}"),
        (
            DataError,
            r"data\.dev = '.*/changed\.jsonl': the word 'xyz' in 'ba xyz' is not in the vocabulary, .* Correct",
            f"data.dev={strange}",
        ),
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


def test_a_gradient_that_is_not_finite_is_one_sentence(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the gradient is not finite; lower training"):
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
