"""Forced alignment by CTC: against every path written out, and what triggered attention makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headsync.attention import MECHANISMS
from headsync.attention.softmax import Triggered
from headsync.config import Config
from headsync.recipe import load_config
from headsync.training import asr_task, forced_alignment
from headsync.training.asr_task import start
from headsync.training.batches import PADDING, Batch, Batches
from headsync.training.bucketing import Share
from headsync.training.forced_alignment import NOWHERE, first_frames, trigger_limits
from headsync.training.trainer import Trainer
from reference.ctc import best_alignment

CLASSES = 4  # the blank, two tokens, <eos>
END = CLASSES - 1
TRIGGERED = [name for name, mechanism in MECHANISMS.items() if issubclass(mechanism, Triggered)]

texts = st.lists(st.integers(1, 2), max_size=4).map(tuple)


def draw(frames: int, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(frames, CLASSES, generator=source, dtype=torch.float64).log_softmax(-1)


def targets(*rows: tuple[int, ...]) -> Tensor:
    steps = max(len(row) for row in rows) + 1
    return torch.tensor([[*row, END, *[PADDING] * (steps - len(row) - 1)] for row in rows])


def expected(tokens: tuple[int, ...], log_p_TV: Tensor, steps: int) -> list[int]:
    first = best_alignment(tokens, log_p_TV.numpy())
    return [*(first or [NOWHERE] * len(tokens)), *[NOWHERE] * (steps - len(tokens))]


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(1, 6), st.integers(0, 10_000))
def test_the_alignment_is_the_best_of_all_paths(tokens: tuple[int, ...], frames: int, seed: int) -> None:
    log_p = draw(frames, seed)
    found = first_frames(log_p[None], torch.tensor([frames]), targets(tokens))
    assert found[0].tolist() == expected(tokens, log_p, len(tokens) + 1)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(texts, st.integers(1, 6)), min_size=2, max_size=4), st.integers(0, 1000))
def test_rows_of_a_padded_batch_are_the_rows_alone(rows: list[tuple[tuple[int, ...], int]], seed: int) -> None:
    log_p = torch.full((len(rows), 6, CLASSES), torch.nan, dtype=torch.float64)
    for number, (_, frames) in enumerate(rows):
        log_p[number, :frames] = draw(frames, seed + number)
    padded = targets(*(tokens for tokens, _ in rows))
    found = first_frames(log_p, torch.tensor([frames for _, frames in rows]), padded)
    for number, (tokens, frames) in enumerate(rows):
        assert found[number].tolist() == expected(tokens, log_p[number, :frames], padded.shape[1])


def test_equal_neighbours_need_a_blank_between_them() -> None:
    log_p = torch.full((1, 4, CLASSES), -9.0)
    log_p[0, :, 1] = -0.01
    log_p[0, 2, 0] = -5.0  # the blank costs least here
    assert first_frames(log_p, torch.tensor([4]), targets((1, 1))).tolist() == [[0, 3, NOWHERE]]
    assert first_frames(log_p[:, :2], torch.tensor([2]), targets((1, 1))).tolist() == [[NOWHERE] * 3]


def test_a_token_is_emitted_at_the_first_frame_of_its_spike() -> None:
    spoken = torch.tensor([0, 0, 2, 2, 0, 1, 1, 1, 0])
    log_p = torch.full((1, 9, CLASSES), -9.0).scatter(2, spoken[None, :, None], -0.01)
    assert first_frames(log_p, torch.tensor([9]), targets((2, 1))).tolist() == [[2, 5, NOWHERE]]


@pytest.fixture
def batch() -> Batch:
    nothing = torch.zeros(2, 0)
    return Batch(nothing, nothing, nothing, targets((2, 1), (1,)))


@pytest.mark.parametrize("name", TRIGGERED)
def test_a_step_sees_a_few_frames_past_its_token_and_the_end_sees_all(
    name: str, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = torch.tensor([[0, 2, 2, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]])
    log_p = torch.full((2, 8, CLASSES), -9.0).scatter(2, spoken[:, :, None], -0.01)
    monkeypatch.setattr(forced_alignment, "_ctc", lambda *_: (log_p, torch.tensor([8, 5])))
    for ahead, expected in (
        (0, [[2, 6, 8], [4, 5, 5]]), (1, [[3, 7, 8], [5, 5, 5]]), (4, [[6, 8, 8], [5, 5, 5]])
    ):  # fmt: skip
        config = replace(Config(), decoder=replace(Config().decoder, attention=name))
        monkeypatch.setattr(forced_alignment, "TRIGGER_FRAMES", ahead)
        limit = trigger_limits(None, batch, config)  # type: ignore[arg-type]
        assert limit is not None
        assert limit.tolist() == expected


def test_only_triggered_attention_is_given_limits(batch: Batch) -> None:
    assert TRIGGERED
    for name in MECHANISMS.keys() - set(TRIGGERED):
        config = replace(Config(), decoder=replace(Config().decoder, attention=name))
        assert trigger_limits(None, batch, config) is None  # type: ignore[arg-type]


@pytest.fixture
def run(recipe: Path, tmp_path: Path) -> Trainer[Any, Any]:
    overrides = [f"training.folder={tmp_path}", f"decoder.attention={TRIGGERED[0]}", "training.untruncated_updates=2"]
    return start(load_config(recipe, overrides), say=lambda _: None)


def first_batch(run: Trainer[Any, Any]) -> Batch:
    task = run.task
    return Batches(task.train, task.vocabulary, task.statistics, task.rows(0))[0]


def test_aligning_does_not_change_the_network_and_is_deterministic(run: Trainer[Any, Any]) -> None:
    batch = first_batch(run)
    run.task.model.train()
    before = torch.random.get_rng_state()
    one, other = (trigger_limits(run.task.model, batch, run.task.config) for _ in range(2))
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(part.training for part in run.task.model.modules())
    _, frames_B = run.task.model.encoder.whole(batch.features_BTF, batch.lengths_B)
    assert not one.requires_grad
    assert (one <= frames_B[:, None]).all()


def test_training_is_limited_once_the_first_phase_is_over(
    run: Trainer[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, seen = first_batch(run), []
    forward = run.task.model.forward

    def watched(*arguments: Tensor) -> object:
        seen.append(arguments[3])
        return forward(*arguments)

    monkeypatch.setattr(run.task.model, "forward", watched)
    run.task.model.train()
    for _ in range(4):
        run.update(Share([batch], [1.0], 0))
    assert [limit is None for limit in seen] == [True, True, False, False]
    assert seen[2].shape == batch.targets_BL.shape


def test_dev_is_measured_with_the_limits_of_training(run: Trainer[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(asr_task, "trigger_limits", lambda *_: asked.append(1))
    for updates, times in ((2, 0), (3, len(run.task.dev_batches()))):
        run.progress.update = updates
        asked.clear()
        run.evaluate()
        assert len(asked) == times
    assert np.isfinite(run.evaluate().loss)
