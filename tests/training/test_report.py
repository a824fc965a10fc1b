"""The output of a run: the log, TensorBoard, the bar on a terminal and plain lines."""

from __future__ import annotations

import errno
import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from headsync.errors import TrainingError
from headsync.training import report
from headsync.training.asr_task import DevResult, _dev_figures, _figures
from headsync.training.checkpoint import TrainingProgress
from headsync.training.report import Report, Style, cut_back
from training.runs import log

VALUES = {"loss": 2.0, "ctc": 3.0, "attention": 1.0, "error": 0.25, "halt": 0.75, "mass": 1.25}
DEV = DevResult(loss=0.5, attention_error=0.25, ctc_error=0.125, attention_loss=0.75)
STYLE = Style(_figures, _dev_figures, "s/s", 100)
MOST_UPDATES = 250_000


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is shown on a terminal 80 columns wide."""
    shown = io.StringIO()
    monkeypatch.setattr(report, "Console", lambda: Console(file=shown, force_terminal=True, width=80))
    return shown


def three_updates(folder: Path, values: dict[str, float] = VALUES, dev: DevResult = DEV) -> None:
    folder.mkdir(exist_ok=True)
    with Report(folder, STYLE, 100, TrainingProgress()) as told:
        told.epoch(TrainingProgress(), 10)
        for update in (1, 2, 3):
            told.update(TrainingProgress(update=update, batch=update), values, 500)
        told.dev(TrainingProgress(update=3, epoch=1, leader=(0.5, 1)), dev)


def test_the_log_holds_every_update_and_every_epoch(tmp_path: Path) -> None:
    three_updates(tmp_path)
    assert log(tmp_path) == [
        *({"update": update, **VALUES} for update in (1, 2, 3)),
        {"update": 3, "epoch": 1, "dev": DEV._asdict()},
    ]


def test_the_bar_fits_into_80_columns(tmp_path: Path, screen: io.StringIO) -> None:
    with Report(tmp_path, STYLE, 100, TrainingProgress()) as told:
        told.epoch(TrainingProgress(epoch=99, batch=4), 10)
        told.amount, told.since = 4_000_000, told.since - 100
        told.update(TrainingProgress(update=MOST_UPDATES, epoch=99, batch=5), VALUES, 500)
    lines = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())) if line]
    shown = lines[-1]
    assert re.match(
        r"epoch 100/100 update 250000  loss 2\.000 error 25\.0%  \d+ s/s [━╸╺ ]+ [-\d]:[-\d]{2}:[-\d]{2}", shown
    )
    assert len(shown) <= 80


def test_the_line_of_an_epoch_has_its_loss_and_errors(tmp_path: Path, screen: io.StringIO) -> None:
    three_updates(tmp_path)
    shown = " ".join(screen.getvalue().split())
    assert "dev loss 0.500 (best) attention error 25.00%, CTC error 12.50%" in shown


def test_an_encoder_trained_alone_has_no_attention_error(tmp_path: Path, screen: io.StringIO) -> None:
    three_updates(tmp_path, {"loss": 2.0, "ctc": 2.0}, DEV._replace(attention_error=None))
    shown = " ".join(screen.getvalue().split())
    assert "loss 2.000" in shown
    assert "dev loss 0.500 (best) CTC error 12.50%" in shown
    assert not any(word in shown for word in ("attention", " error 2"))


def test_a_pipe_gets_plain_lines_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    three_updates(tmp_path / "seldom")
    assert len(capsys.readouterr().out.splitlines()) == 1  # that of the epoch
    monkeypatch.setattr(report, "LINE_SECONDS", 0.0)
    three_updates(tmp_path / "always")
    *updates, epoch = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in updates] == [f"epoch 1/100 update {number}" for number in (1, 2, 3)]
    assert updates[-1].endswith("batch 3/10")
    assert "loss 2.000 error 25.0%" in updates[-1]
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


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    three_updates(tmp_path)
    whole = log(tmp_path)
    path = tmp_path / "log.jsonl"
    cut_back(path, TrainingProgress(update=3, epoch=1))
    assert log(tmp_path) == whole
    cut_back(
        path, TrainingProgress(update=3, epoch=0, batch=3)
    )  # killed after the epoch was logged and before it was kept
    assert log(tmp_path) == whole[:3]
    with path.open("a") as file:
        file.write('{"update": 4, "lo')
    cut_back(path, TrainingProgress(update=2))
    assert log(tmp_path) == whole[:2]
    cut_back(tmp_path / "none.jsonl", TrainingProgress())
    assert not (tmp_path / "none.jsonl").exists()


def test_a_resumed_run_appends_to_its_log(tmp_path: Path) -> None:
    three_updates(tmp_path)
    with Report(tmp_path, STYLE, 100, TrainingProgress(update=2, batch=2)) as told:
        told.epoch(TrainingProgress(update=2, batch=2), 10)
        told.update(TrainingProgress(update=3, batch=3), VALUES, 500)
    assert [entry["update"] for entry in log(tmp_path)] == [1, 2, 3]


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Report(tmp_path, STYLE, 100, TrainingProgress()) as told:
        told.epoch(TrainingProgress(), 10)
        told.log.close()
        told.log = Full()  # type: ignore[assignment]
        with pytest.raises(TrainingError, match=r"log\.jsonl: cannot be written \(No space left on device\)") as caught:
            told.update(TrainingProgress(update=1), VALUES, 500)
    assert "\n" not in str(caught.value)
