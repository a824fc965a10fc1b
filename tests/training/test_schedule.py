"""How fast a run learns: the Noam schedule by hand, and Adam as section 5.1 sets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headsync.config import TrainingConfig
from headsync.recipe import load_config
from headsync.training import optimisation
from headsync.training.asr_task import start
from headsync.training.bucketing import Share
from headsync.training.schedule import noam
from headsync.training.trainer import Trainer


@pytest.fixture
def run(recipe: Path, tmp_path: Path) -> Trainer[Any, Any]:
    return start(load_config(recipe, [f"training.folder={tmp_path}", "network.dropout=0.0"]), print)


def first_update(run: Trainer[Any, Any]) -> None:
    run.update(Share([run.task.train_batches(0)[0]], [1.0], 0))


def test_noam_by_hand() -> None:
    assert noam(1, width=64, factor=2.0, warmup=100) == pytest.approx(2.0 / 8 / 1000)
    assert noam(50, width=64, factor=2.0, warmup=100) == pytest.approx(2.0 / 8 * 50 / 1000)
    assert noam(100, width=64, factor=2.0, warmup=100) == pytest.approx(2.0 / 8 / 10)
    assert noam(400, width=64, factor=2.0, warmup=100) == pytest.approx(2.0 / 8 / 20)


def test_noam_rises_to_the_end_of_the_warm_up_and_then_falls() -> None:
    rates = [noam(update, 256, 10.0, 25) for update in range(1, 101)]
    assert rates == sorted(rates[:25]) + sorted(rates[25:], reverse=True)
    assert max(rates) == rates[24]


def test_the_papers_schedule_peaks_at_its_25000th_update() -> None:
    settings = TrainingConfig()
    peak = noam(25_000, 256, settings.noam_factor, settings.warmup_updates)
    assert peak == pytest.approx(10 / 16 / 25_000**0.5)
    assert noam(24_999, 256, 10.0, 25_000) < peak > noam(25_001, 256, 10.0, 25_000)


def test_adam_is_set_as_the_paper_says(run: Trainer[Any, Any]) -> None:
    (group,) = run.task.optimiser.param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.98), 1e-9)
    assert (group["weight_decay"], group["amsgrad"]) == (0, False)
    assert len(group["params"]) == len(list(run.task.model.parameters()))


def test_an_update_descends_by_the_rate_of_its_number(run: Trainer[Any, Any]) -> None:
    before = [p.detach().clone() for p in run.task.model.parameters()]
    first_update(run)
    rate = noam(1, width=16, factor=0.5, warmup=10)
    assert run.task.optimiser.param_groups[0]["lr"] == rate
    # The first step of Adam moves every weight with a gradient well above 1e-9 by the rate itself, up or down.
    moves = [(b - p.detach()).abs() / rate for b, p in zip(before, run.task.model.parameters(), strict=True)]
    clear = [
        m[p.grad.abs() > 1e-6] for m, p in zip(moves, run.task.model.parameters(), strict=True) if p.grad is not None
    ]
    assert sum(m.numel() for m in clear) > 1000
    torch.testing.assert_close(torch.cat(clear), torch.ones(sum(m.numel() for m in clear)), atol=0.01, rtol=0)


def test_gradients_are_clipped(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = {}
    for clip in (1e-3, 1e6):
        monkeypatch.setattr(optimisation, "CLIP_NORM", clip)
        run = start(load_config(recipe, [f"training.folder={tmp_path}"]), print)
        first_update(run)
        norms[clip] = float(
            torch.cat([p.grad.flatten() for p in run.task.model.parameters() if p.grad is not None]).norm()
        )
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-3)
    assert norms[1e6] > 0.1
