"""The transducer of the tables: its loss against all paths, the search, and resumed training."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transducer import (
    CONTEXT,
    Evaluation,
    Transducer,
    TransducerTask,
    available_seconds,
    greedy,
    log_normaliser,
    recogniser_task,
    trainer_of,
    transducer_loss,
)

from headsync.corpora import toy
from headsync.recipe import load_config
from headsync.training.batches import PADDING, Batch
from headsync.training.trainer import Trainer
from training.runs import Interrupts, weights
from training.softmax_start import write_start

CLASSES, WIDTH, END = 5, 6, 4
TEXTS, FRAMES = [[1, 2, 2], [3]], [4, 3]


def by_enumeration(blank_TU: Tensor, token_TU: Tensor, frames: int, count: int) -> float:
    """-log of the sum over all orders of the blanks and tokens; the last move is a blank."""
    total = 0.0
    for places in itertools.combinations(range(frames - 1 + count), count):
        t = u = 0
        score = 0.0
        for move in range(frames - 1 + count):
            if move in places:
                score, u = score + float(token_TU[t, u]), u + 1
            else:
                score, t = score + float(blank_TU[t, u]), t + 1
        total += math.exp(score + float(blank_TU[t, u]))
    return -math.log(total)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_sum_over_all_paths(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    blank, token = (torch.randn(3, 5, n, generator=source, dtype=torch.float64).sub(1) for n in (4, 3))
    blank.requires_grad_(True)
    frames, counts = torch.tensor([5, 2, 1]), torch.tensor([3, 1, 0])
    found = transducer_loss(blank, token, frames, counts)
    wanted = [
        by_enumeration(blank[b].detach(), token[b], t, u)
        for b, (t, u) in enumerate(zip(frames.tolist(), counts.tolist(), strict=True))
    ]
    assert found.tolist() == pytest.approx(wanted)
    found.sum().backward()
    assert blank.grad is not None
    assert blank.grad.isfinite().all()
    assert torch.autograd.gradcheck(lambda x: transducer_loss(x, token, frames, counts), (blank,))


def a_model() -> Transducer:
    torch.manual_seed(1)
    model = Transducer(torch.randn(CLASSES, WIDTH))
    torch.nn.init.constant_(model.frames.norm.weight, 2.0)
    return model.double()


def a_batch() -> Batch:
    frames = torch.randn(2, max(FRAMES), WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    targets = torch.tensor([[1, 2, 2, END], [3, END, PADDING, PADDING]])
    return Batch(frames, torch.tensor(FRAMES), targets, targets)


def text_logits(model: Transducer, before: list[int]) -> Tensor:
    return model.of_texts(torch.tensor(([0] * CONTEXT + before)[-CONTEXT:]))


@torch.no_grad()
def test_the_network_normalises_each_node_over_all_classes() -> None:
    model, batch = a_model(), a_batch()
    losses = model(batch).tolist()
    for row, (text, count) in enumerate(zip(TEXTS, FRAMES, strict=True)):
        frames = model.of_frames(batch.features_BTF[row])
        places = [text_logits(model, text[:u]) for u in range(len(text) + 1)]
        nodes = torch.stack([torch.stack([(frame + place).log_softmax(-1) for place in places]) for frame in frames])
        token = torch.stack([nodes[:, u, label] for u, label in enumerate(text)], 1)
        assert losses[row] == pytest.approx(by_enumeration(nodes[..., 0], token, count, len(text)), rel=1e-5)


def test_the_normaliser_is_exact_for_large_logits() -> None:
    source = torch.Generator().manual_seed(3)
    frames, texts = (10 * torch.randn(1, n, 50, generator=source) for n in (4, 3))
    wanted = (frames[:, :, None] + texts[:, None]).logsumexp(-1)
    torch.testing.assert_close(log_normaliser(frames, texts), wanted, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_greedy_search_takes_the_best_class_of_each_node() -> None:
    model, frames = a_model(), a_batch().features_BTF[0]
    found = greedy(model, frames)
    assert found
    wanted: list[tuple[int, int]] = []
    for t, logits in enumerate(model.of_frames(frames)):
        for _ in range(3):
            best = int((logits + text_logits(model, [token for token, _ in wanted])).argmax())
            if not best:
                break
            wanted.append((best, t))
    assert [tuple(one) for one in found] == wanted


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    toy.prepare(tmp_path / "toy", strings=toy.Counts(train=8, dev=2, test=2))
    return write_start(tmp_path / "toy", tmp_path)


def trainer(recipe: Path, folder: Path) -> Trainer[Batch, Evaluation]:
    config = load_config(recipe, [f"training.folder={folder}", "training.match_updates=0"])
    return trainer_of(recogniser_task(config, []))


def test_training_lowers_the_loss_and_a_resumed_run_ends_like_an_undisturbed_one(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainer(recipe, tmp_path / "whole")
    before = whole.evaluate()
    whole.train()
    assert whole.evaluate().loss < before.loss
    with monkeypatch.context() as patch:
        interrupts = Interrupts(TransducerTask.loss, 4, after=False)
        patch.setattr(TransducerTask, "loss", lambda *arguments: interrupts(*arguments))
        with pytest.raises(KeyboardInterrupt):
            trainer(recipe, tmp_path / "stopped").train()
    trainer(recipe, tmp_path / "stopped").train()
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_frame_is_available_after_its_chunk(recipe: Path) -> None:
    config = load_config(recipe)  # chunks of 4 frames, 2 frames behind
    first, second = (available_seconds(frame, config, 9.0) for frame in (0, 4))
    assert 6 * 0.048 < first < 7 * 0.048  # the front end needs some samples more
    assert second - first == pytest.approx(4 * 0.048)
    assert available_seconds(4, config, 0.3) == 0.3
