"""Training of language models: what it reads, that it learns, and that stopping it anywhere changes nothing."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headsync.config import Config, LanguageConfig
from headsync.corpora import lm_text
from headsync.errors import ConfigError, DataError, ModelError, TrainingError
from headsync.model_folder import CARD, VOCABULARY, WEIGHTS, load_folder, load_language_folder
from headsync.nn.lstm_lm import LanguageNetwork
from headsync.recipe import load_config
from headsync.text.vocabulary import UNKNOWN, Vocabulary
from headsync.training import lm_task, train
from headsync.training.batches import PADDING
from headsync.training.lm_task import collate, plan, start, token_losses
from headsync.training.trainer import Trainer, part_of_pass
from training.lm_recipe import SENTENCES, write_recipe
from training.runs import log, updates_kept

LONGEST_SECONDS = 120.0


def quietly(recipe: Path, folder: Path, *overrides: str) -> Path:
    return train(recipe, [f"training.folder={folder}", *overrides], say=lambda _: None)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight epochs."""
    folder = tmp_path_factory.mktemp("run")
    quietly(recipe, folder, "training.epochs=8")
    return folder


# batches


def test_a_text_of_fewer_batches_than_parts_of_a_pass_is_learned_all_the_same() -> None:
    rows = [[0, 1], [2]]
    assert [part_of_pass(rows, part, 5) for part in range(5)] == [[[0, 1]], [[2]], [[0, 1]], [[2]], [[0, 1]]]
    assert [part_of_pass([[n] for n in range(5)], part, 2) for part in range(2)] == [[[0], [1]], [[2], [3], [4]]]


def test_every_sentence_is_in_one_batch_of_an_epoch_and_none_is_too_large() -> None:
    lengths = np.random.default_rng(1).integers(0, 30, 200)
    for epoch in range(3):
        batches = plan(lengths, 90, seed=1, epoch=epoch)
        assert sorted(index for batch in batches for index in batch) == list(range(200))
        for batch in batches:
            assert len(batch) * (max(lengths[batch]) + 1) <= 90 or len(batch) == 1
    assert plan(lengths, 90, 1, 0) == plan(lengths, 90, 1, 0) != plan(lengths, 90, 1, 1)


def test_batches_hold_sentences_of_like_length() -> None:
    lengths = np.random.default_rng(1).integers(1, 100, 2000)
    batches = plan(lengths, 1000, seed=1, epoch=0)
    assert sum(len(batch) * max(lengths[batch]) for batch in batches) < 1.15 * lengths.sum()


def test_a_batch_begins_with_the_start_and_ends_with_the_end() -> None:
    batch = collate([np.array([3, 4], np.int32), np.array([5], np.int32), np.array([], np.int32)], end=9)
    assert batch.tokens_BL.tolist() == [[9, 3, 4], [9, 5, 9], [9, 9, 9]]
    assert batch.targets_BL.tolist() == [[3, 4, 9], [5, 9, PADDING], [9, PADDING, PADDING]]


# network


@pytest.mark.parametrize(("layers", "width"), [(1, 1000), (2, 650), pytest.param(4, 2048, marks=pytest.mark.slow)])
def test_the_papers_networks_take_a_step(layers: int, width: int) -> None:
    torch.manual_seed(1)
    model = LanguageNetwork(LanguageConfig(layers=layers, width=width), 20)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = collate([np.array([3, 4], np.int32), np.array([5], np.int32)], end=19)
    losses = []
    for _ in range(2):
        total, tokens = token_losses(model, batch)
        sgd.zero_grad()
        total.backward()
        sgd.step()
        losses.append(float(total.detach()) / tokens)
    assert losses[0] == pytest.approx(math.log(19), rel=0.02)  # the blank is none of the choices
    assert losses[1] < losses[0]


def test_the_blank_is_never_predicted_and_padding_does_not_count() -> None:
    torch.manual_seed(1)
    model = LanguageNetwork(LanguageConfig(layers=1, width=8), 6)
    rows = [np.array([1, 2, 3], np.int32), np.array([4], np.int32)]
    p = model(collate(rows, 5).tokens_BL).softmax(-1)
    assert torch.equal(p[..., 0], torch.zeros(p.shape[:2]))
    together, tokens = token_losses(model, collate(rows, 5))
    assert tokens == 6
    alone = sum(float(token_losses(model, collate([row], 5))[0].detach()) for row in rows)
    assert float(together.detach()) == pytest.approx(alone, rel=1e-5)


# runs


def test_a_run_learns_and_leaves_a_model_folder(run: Path) -> None:
    dev = [entry["dev"] for entry in log(run) if "dev" in entry]
    assert len(dev) == 8
    assert dev[-1]["loss"] < 0.8 * dev[0]["loss"]
    assert dev[-1]["perplexity"] == pytest.approx(math.exp(dev[-1]["loss"]))
    folder = load_language_folder(run / "model")
    assert folder.config.kind == "lm"
    assert set(folder.vocabulary.tokens) == {UNKNOWN, *Vocabulary.build("characters", SENTENCES).tokens}
    assert "perplexity" in (run / "model" / CARD).read_text()
    assert list(run.glob("events.out.tfevents.*"))
    assert len(list(run.glob("epoch-*.safetensors"))) == 2


def test_perplexity_per_word_counts_the_words_and_the_ends(run: Path) -> None:
    (dev,) = (entry["dev"] for entry in log(run) if entry.get("epoch") == 8)
    held_out = SENTENCES[-1:]
    tokens = sum(len(sentence) + 1 for sentence in held_out)
    words = sum(len(sentence.split()) + 1 for sentence in held_out)
    assert math.log(dev["word_perplexity"]) * words == pytest.approx(dev["loss"] * tokens)


def test_a_run_killed_at_some_moment_ends_like_an_undisturbed_one(recipe: Path, tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    settings = ["training.epochs=10", "training.checkpoint_seconds=0.05"]
    quietly(recipe, undisturbed, *settings)
    arguments = [sys.executable, "-m", "headsync", "train", str(recipe), f"training.folder={killed}", *settings]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    until = time.monotonic() + LONGEST_SECONDS
    while updates_kept(killed) <= updates_kept(undisturbed) // 3:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < until, "the run does not get on"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert updates_kept(killed) < updates_kept(undisturbed)
    quietly(recipe, killed, *settings)
    assert log(killed) == log(undisturbed)
    assert (killed / "model" / WEIGHTS).read_bytes() == (undisturbed / "model" / WEIGHTS).read_bytes()


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_longer_run_continues_and_other_settings_are_refused(recipe: Path, tmp_path: Path, optimiser: str) -> None:
    by = f"language.optimiser={optimiser}"
    quietly(recipe, tmp_path / "a", by, "training.epochs=2")
    quietly(recipe, tmp_path / "b", by, "training.epochs=1")
    quietly(recipe, tmp_path / "b", by, "training.epochs=2")
    assert log(tmp_path / "a") == log(tmp_path / "b")
    for other in ("language.width=16", "language.rate=0.5", "training.seed=2", "data.tokens=words"):
        with pytest.raises(TrainingError, match="holds a run with other settings"):
            quietly(recipe, tmp_path / "a", by, other)


def test_a_run_out_of_patience_stops(recipe: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path, "training.epochs=30", "training.patience=2", "language.rate=1e-30")
    assert [entry["epoch"] for entry in log(tmp_path) if "epoch" in entry] == [1, 2, 3]


def test_parts_of_a_pass_are_a_pass(recipe: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path / "whole", "training.epochs=1")
    quietly(recipe, tmp_path / "parts", "training.epochs=3", "training.epochs_per_pass=3")
    losses = [[entry["loss"] for entry in log(tmp_path / name) if "loss" in entry] for name in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_a_gradient_that_is_not_finite_ends_the_run(recipe: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(math.nan))
    with pytest.raises(TrainingError, match=r"update 1: the gradient is not finite; lower language\.rate"):
        quietly(recipe, tmp_path)


# vocabularies and texts


def configured(recipe: Path, folder: Path, *overrides: str) -> Config:
    return load_config(recipe, [f"training.folder={folder}", *overrides])


def test_rare_words_are_unknown(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_task, "word_vocabulary", partial(lm_text.word_vocabulary, most=3))
    made = start(configured(recipe, tmp_path, "data.tokens=words"), say=lambda _: None)
    assert made.task.vocabulary == Vocabulary("words", (UNKNOWN, "a", "on", "the"))
    assert made.task.train[0].tolist() == made.task.vocabulary.encode("the <unk> <unk> on the <unk>")


def test_pieces_are_learned_from_the_text(recipe: Path, tmp_path: Path) -> None:
    made = start(configured(recipe, tmp_path, "data.tokens=bpe", "data.bpe_size=25"), say=lambda _: None)
    assert made.task.vocabulary.kind == "bpe"
    assert len(made.task.vocabulary.tokens) == 25
    assert made.task.vocabulary.decode(made.task.train[0].tolist()) == SENTENCES[0]


def test_a_model_can_share_the_tokens_of_another(recipe: Path, run: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("a dog\nzzz\na cat\nthe mat\n")
    told: list[str] = []
    other = Path(shutil.copytree(run / "model", tmp_path / "other"))
    Vocabulary.build("characters", SENTENCES).save(other / VOCABULARY)  # without <unk>
    overrides = (f"data.train={text}", f"language.vocabulary_from={other}", "data.tokens=words")
    made = start(configured(recipe, tmp_path, *overrides), told.append)
    assert made.task.vocabulary == Vocabulary.load(other / VOCABULARY)
    assert made.task.config.data.tokens == "characters"
    assert len(made.task.train) == 2
    assert told[0] == "left out 1 of 3 sentences, with characters outside the vocabulary"


def test_a_text_to_measure_with_can_be_named(recipe: Path, tmp_path: Path) -> None:
    dev = tmp_path / "dev.txt"
    dev.write_text("the cat\n")
    made = start(configured(recipe, tmp_path, f"data.dev={dev}"), say=lambda _: None)
    assert (len(made.task.train), len(made.task.dev)) == (30, 1)
    assert made.task.vocabulary.decode(made.task.dev[0].tolist()) == "the cat"


def test_unusable_texts_are_errors(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("alone\n")
    with pytest.raises(DataError, match="too few to hold some out"):
        quietly(recipe, tmp_path / "run", f"data.train={tmp_path}/one.txt")
    with pytest.raises(DataError, match="no such file; pass a text"):
        quietly(recipe, tmp_path / "run", f"data.train={tmp_path}/none.txt")
    with pytest.raises(ConfigError, match=r"lm\.toml: data\.train is not set; name a text"):
        quietly(recipe, tmp_path / "run", "data.train=")


def test_a_language_model_is_no_recogniser_and_the_other_way_round(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a recogniser, found a language model"):
        load_folder(run / "model")
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ModelError, match="expected a language model, found a recogniser"):
        load_language_folder(tmp_path)


def test_an_interrupted_run_keeps_its_progress(recipe: Path, tmp_path: Path, monkeypatch: Any) -> None:
    quietly(recipe, tmp_path / "undisturbed")
    updates = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == 5:
            raise KeyboardInterrupt
        return update(*arguments)

    update = Trainer.update
    monkeypatch.setattr(Trainer, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quietly(recipe, tmp_path / "run")
    assert updates_kept(tmp_path / "run") == 4
    monkeypatch.setattr(Trainer, "update", update)
    quietly(recipe, tmp_path / "run")
    assert log(tmp_path / "run") == log(tmp_path / "undisturbed")


def test_the_command_trains_the_recipe(recipe: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from headsync.cli.app import app

    result = CliRunner().invoke(app, ["train", str(recipe), f"training.folder={tmp_path}", "training.epochs=1"])
    assert result.exit_code == 0, result.output
    assert "per word" in result.output
    assert load_language_folder(tmp_path / "model").vocabulary.size == 18
