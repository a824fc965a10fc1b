"""What a run tells while it runs: a progress bar or plain lines, log.jsonl, and TensorBoard files beside it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from headsync.config import Config
from headsync.errors import TrainingError
from headsync.train import checkpoint
from headsync.train.evaluate import DevResult
from headsync.train.losses import Losses
from headsync.train.plan import FRAMES_PER_SECOND
from headsync.writing import write_atomically

LINE_SECONDS = 30.0  # between lines where there is no terminal
SMOOTHING = 0.98


class Report:
    """Use as a context. After a stop the log is cut back to the checkpoint, so that no update stands in it twice."""

    def __init__(self, folder: Path, config: Config, progress: checkpoint.Progress) -> None:
        self.log_path = folder / "log.jsonl"
        cut_back(self.log_path, progress)
        self.log = self.log_path.open("a", encoding="utf-8")
        self.board: Any = SummaryWriter(str(folder), purge_step=progress.update + 1)
        self.config, self.console = config, Console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task: TaskID | None = None
        self.means: dict[str, float] = {}
        self.amount, self.since, self.line, self.batches = 0, time.monotonic(), time.monotonic(), 0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.bar.stop()
        with contextlib.suppress(OSError):  # all that matters was flushed, or the reason for leaving has told of it
            self.log.close()
            self.board.close()

    def epoch(self, progress: checkpoint.Progress, batches: int) -> None:
        """A new epoch begins, or the rest of one."""
        self.batches = batches
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task("", total=batches, completed=progress.batch)

    def update(self, progress: checkpoint.Progress, losses: Losses, frames: int) -> None:
        """One update was made."""
        values = {
            "loss": float(losses.joint.detach()), "ctc": float(losses.ctc), "attention": float(losses.attention),
            "error": float(losses.wrong) / float(losses.steps), "halt": float(losses.halt), "mass": float(losses.mass),
        }  # fmt: skip
        if self.config.training.teacher:
            values["unlike"] = float(losses.unlike)
        if self.config.training.reading_weight:
            values["misread"] = float(losses.misread)
        self._updated(progress, values, frames)

    def _updated(self, progress: checkpoint.Progress, values: dict[str, float], amount: int) -> None:
        """Tell of an update by its figures and by how much was learned from."""
        for name, value in values.items():
            self.means[name] = SMOOTHING * self.means.get(name, value) + (1 - SMOOTHING) * value
        self._write("train", values, {"update": progress.update, **values})
        self.amount += amount
        text = self._text(progress)
        assert self.task is not None
        self.bar.update(self.task, completed=progress.batch, description=text)
        if self.bar.disable and time.monotonic() - self.line > LINE_SECONDS:
            self.line = time.monotonic()
            self.console.print(f"{text}  batch {progress.batch}/{self.batches}", soft_wrap=True, highlight=False)

    def dev(self, progress: checkpoint.Progress, result: DevResult) -> None:
        """An epoch was measured."""
        attention = "" if self.config.training.alone else f"attention error {result.attention_error:.2%}  "
        teacher = f"  unlike {result.unlike:.3f}" if result.unlike else ""
        self._measured(progress, result._asdict(), f"{attention}CTC error {result.ctc_error:.2%}{teacher}")

    def _measured(self, progress: checkpoint.Progress, values: dict[str, float], text: str) -> None:
        """Tell of an epoch by its figures, its loss among them, and in words."""
        self._write("dev", values, {"update": progress.update, "epoch": progress.epoch, "dev": values})
        best = " (best)" if progress.best[0][1] == progress.epoch else ""
        line = f"epoch {progress.epoch}  update {progress.update}  dev loss {values['loss']:.3f}{best}  {text}"
        self.console.print(line, soft_wrap=True, highlight=False)

    def flush(self) -> None:
        with _telling(self.log_path):
            self.log.flush()
            self.board.flush()

    def _write(self, part: str, values: dict[str, float], entry: dict[str, Any]) -> None:
        with _telling(self.log_path):
            self.log.write(json.dumps(entry) + "\n")
            for name, value in values.items():
                self.board.add_scalar(f"{part}/{name}", value, entry["update"])

    def _text(self, progress: checkpoint.Progress) -> str:
        m, speed = self.means, self.amount / FRAMES_PER_SECOND / (time.monotonic() - self.since)
        decoder = f"error {m['error']:.1%}  halt {m['halt']:.2f}  mass {m['mass']:.2f}  "
        teacher = f"unlike {m['unlike']:.2f}  " if "unlike" in m else ""
        teacher += f"misread {m['misread']:.3f}  " if "misread" in m else ""
        return (
            f"epoch {progress.epoch + 1} update {progress.update}  loss {m['loss']:.3f}  "
            f"{'' if self.config.training.alone else decoder}{teacher}{speed:.0f} s/s"
        )


class Mute(Report):
    """The report of a process that is not the first of its run: it tells nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        pass

    def epoch(self, progress: checkpoint.Progress, batches: int) -> None:
        pass

    def _updated(self, progress: checkpoint.Progress, values: dict[str, float], amount: int) -> None:
        pass

    def _measured(self, progress: checkpoint.Progress, values: dict[str, float], text: str) -> None:
        pass

    def flush(self) -> None:
        pass


@contextlib.contextmanager
def _telling(log: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{log}: cannot be written ({error.strerror}); make room and start the same command again"
        ) from None


def cut_back(log: Path, progress: checkpoint.Progress) -> None:
    """Drop what was logged after the last checkpoint; it will be done again."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            if entry["update"] <= progress.update and entry.get("epoch", 0) <= progress.epoch:
                kept.append(line + "\n")
        except ValueError:  # the line that a kill cut in two
            continue
    write_atomically(log, "".join(kept).encode())
