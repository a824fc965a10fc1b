"""What a run tells: the log, TensorBoard, the bar on a terminal and the lines elsewhere."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest
import torch
from rich.console import Console

from headsync.config import Config, TrainingConfig
from headsync.errors import TrainingError
from headsync.train import report
from headsync.train.checkpoint import Progress
from headsync.train.evaluate import DevResult
from headsync.train.losses import Losses
from headsync.train.report import Report, cut_back
from train.runs import log

LOSSES = Losses(*map(torch.tensor, (2.0, 3.0, 1.0, 5, 20, 0.75, 1.25, 0.0, 0.5, 0.125)))
VALUES = {"loss": 2.0, "ctc": 3.0, "attention": 1.0, "error": 0.25, "halt": 0.75, "mass": 1.25}
DEV = DevResult(loss=0.5, attention_error=0.25, ctc_error=0.125)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is shown on a terminal 160 columns wide."""
    shown = io.StringIO()
    monkeypatch.setattr(report, "Console", lambda: Console(file=shown, force_terminal=True, width=160))
    return shown


def three_updates(folder: Path, config: Config = Config()) -> None:  # noqa: B008 - it is a frozen value
    folder.mkdir(exist_ok=True)
    with Report(folder, config, Progress()) as told:
        told.epoch(Progress(), 10)
        for update in (1, 2, 3):
            told.update(Progress(update=update, batch=update), LOSSES, frames=500)
        told.dev(Progress(update=3, epoch=1, best=[(0.5, 1)]), DEV)


def test_the_log_holds_every_update_and_every_epoch(tmp_path: Path) -> None:
    three_updates(tmp_path)
    assert log(tmp_path) == [
        *({"update": update, **VALUES} for update in (1, 2, 3)),
        {"update": 3, "epoch": 1, "dev": {"loss": 0.5, "attention_error": 0.25, "ctc_error": 0.125, "unlike": 0.0}},
    ]


def test_a_terminal_shows_loss_error_halt_mass_speed_and_time_left(tmp_path: Path, screen: io.StringIO) -> None:
    three_updates(tmp_path)
    shown = screen.getvalue()
    for part in ("epoch 1 update 3", "loss 2.000", "error 25.0%", "halt 0.75", "mass 1.25", " s/s", "3/10", ":"):
        assert part in shown
    assert "dev loss 0.500 (best)  attention error 25.00%  CTC error 12.50%" in shown


def test_what_does_not_take_part_is_not_shown_and_a_teacher_is(tmp_path: Path, screen: io.StringIO) -> None:
    config = Config(training=TrainingConfig(ctc_weight=1, teacher="somewhere", reading_weight=1))
    three_updates(tmp_path, config)
    shown = screen.getvalue()
    assert "loss 2.000  unlike 0.50  misread 0.125  " in shown
    assert "dev loss 0.500 (best)  CTC error 12.50%" in shown
    assert not any(word in shown for word in ("halt", "mass", "attention"))
    assert [(entry["unlike"], entry["misread"]) for entry in log(tmp_path)[:3]] == [(0.5, 0.125)] * 3


def test_a_pipe_gets_plain_lines_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    three_updates(tmp_path / "seldom")
    assert len(capsys.readouterr().out.splitlines()) == 1  # that of the epoch
    monkeypatch.setattr(report, "LINE_SECONDS", 0.0)
    three_updates(tmp_path / "always")
    *updates, epoch = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in updates] == [f"epoch 1 update {number}" for number in (1, 2, 3)]
    assert updates[-1].endswith("batch 3/10")
    assert "halt 0.75  mass 1.25" in updates[-1]
    assert epoch.startswith("epoch 1  update 3  dev loss 0.500")


@pytest.mark.filterwarnings("ignore")  # of the reader, which is TensorBoard's
def test_tensorboard_reads_the_figures_beside_the_log(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    three_updates(tmp_path)
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    assert set(board.Tags()["scalars"]) == {
        *(f"train/{name}" for name in VALUES), *(f"dev/{name}" for name in DEV._fields)
    }  # fmt: skip
    assert [(event.step, event.value) for event in board.Scalars("train/halt")] == [(n, 0.75) for n in (1, 2, 3)]


def test_what_was_logged_after_the_checkpoint_is_cut_back(tmp_path: Path) -> None:
    three_updates(tmp_path)
    whole = log(tmp_path)
    path = tmp_path / "log.jsonl"
    cut_back(path, Progress(update=3, epoch=1))
    assert log(tmp_path) == whole
    cut_back(path, Progress(update=3, epoch=0, batch=3))  # killed after the epoch was logged and before it was kept
    assert log(tmp_path) == whole[:3]
    with path.open("a") as file:
        file.write('{"update": 4, "lo')
    cut_back(path, Progress(update=2))
    assert log(tmp_path) == whole[:2]
    cut_back(tmp_path / "none.jsonl", Progress())
    assert not (tmp_path / "none.jsonl").exists()


def test_a_run_that_goes_on_adds_to_its_log(tmp_path: Path) -> None:
    three_updates(tmp_path)
    with Report(tmp_path, Config(), Progress(update=2, batch=2)) as told:
        told.epoch(Progress(update=2, batch=2), 10)
        told.update(Progress(update=3, batch=3), LOSSES, frames=500)
    assert [entry["update"] for entry in log(tmp_path)] == [1, 2, 3]


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Report(tmp_path, Config(), Progress()) as told:
        told.epoch(Progress(), 10)
        told.log.close()
        told.log = Full()  # type: ignore[assignment]
        with pytest.raises(TrainingError, match=r"log\.jsonl: cannot be written \(No space left on device\)") as caught:
            told.update(Progress(update=1), LOSSES, frames=500)
    assert "\n" not in str(caught.value)
