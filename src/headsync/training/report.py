"""The output of a run: a progress bar or plain lines, log.jsonl, and TensorBoard files beside it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from headsync._atomic_write import write_atomically
from headsync.errors import TrainingError
from headsync.training.checkpoint import TrainingProgress

LINE_SECONDS = 30.0  # between lines if the output is not a terminal
SMOOTHING = 0.98
BAR_COLUMNS = 8


class Style(NamedTuple):
    """The format of the figures of a task."""

    figures: Callable[[Mapping[str, float]], str]  # from running means to a few words
    result: Callable[[Any], str]  # of an evaluated epoch, apart from its loss
    unit: str  # of speed, such as "tokens/s"
    per_unit: float = 1.0  # amount of data in one unit


class Report:
    """A context manager. A resumed run cuts the log back to its checkpoint, so no update is logged twice."""

    def __init__(self, folder: Path, style: Style, epochs: int, progress: TrainingProgress) -> None:
        self.log_path = folder / "log.jsonl"
        cut_back(self.log_path, progress)
        self.log = self.log_path.open("a", encoding="utf-8")
        self.board: Any = SummaryWriter(str(folder), purge_step=progress.update + 1)
        self.style, self.epochs, self.console = style, epochs, Console()
        columns = (TextColumn("{task.description}"), BarColumn(BAR_COLUMNS), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task: TaskID | None = None
        self.means: dict[str, float] = {}
        self.amount, self.since, self.line, self.batches = 0, time.monotonic(), time.monotonic(), 0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.bar.stop()
        with contextlib.suppress(OSError):  # the log has been flushed, or the failure was reported
            self.log.close()
            self.board.close()

    def epoch(self, progress: TrainingProgress, batches: int) -> None:
        """Start an epoch, or the rest of one."""
        self.batches = batches
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task("", total=batches, completed=progress.batch)

    def update(self, progress: TrainingProgress, figures: Mapping[str, float], amount: int) -> None:
        """Record an update with this number of frames or tokens."""
        for name, value in figures.items():
            self.means[name] = SMOOTHING * self.means.get(name, value) + (1 - SMOOTHING) * value
        self._write("train", figures, {"update": progress.update, **figures})
        self.amount += amount
        assert self.task is not None
        self.bar.update(self.task, completed=progress.batch, description=self._text(progress))
        if self.bar.disable and time.monotonic() - self.line > LINE_SECONDS:
            self.line = time.monotonic()
            self._print(f"{self._text(progress)}  batch {progress.batch}/{self.batches}")

    def dev(self, progress: TrainingProgress, result: Any) -> None:
        values = {name: value for name, value in result._asdict().items() if value is not None}
        self._write("dev", values, {"update": progress.update, "epoch": progress.epoch, "dev": values})
        best = " (best)" if progress.leader and progress.leader[1] == progress.epoch else ""
        line = f"epoch {progress.epoch}  update {progress.update}  dev loss {values['loss']:.3f}{best}  "
        self._print(line + self.style.result(result))

    def flush(self) -> None:
        with _disk_errors(self.log_path):
            self.log.flush()
            self.board.flush()

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, highlight=False)

    def _write(self, part: str, values: Mapping[str, float], entry: dict[str, Any]) -> None:
        with _disk_errors(self.log_path):
            self.log.write(json.dumps(entry) + "\n")
            for name, value in values.items():
                self.board.add_scalar(f"{part}/{name}", value, entry["update"])

    def _text(self, progress: TrainingProgress) -> str:
        """At most about 60 characters, so that a bar and the time left fit into 80 columns."""
        speed = self.amount / self.style.per_unit / (time.monotonic() - self.since)
        place = f"epoch {progress.epoch + 1}/{self.epochs} update {progress.update}"
        return f"{place}  {self.style.figures(self.means)}  {speed:.0f} {self.style.unit}"


@contextlib.contextmanager
def _disk_errors(log: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{log}: cannot be written ({error.strerror}); free some space and start the same command again"
        ) from None


def cut_back(log: Path, progress: TrainingProgress) -> None:
    """Drop the lines after the last checkpoint; their updates will be made again."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            if entry["update"] <= progress.update and entry.get("epoch", 0) <= progress.epoch:
                kept.append(line + "\n")
        except ValueError:  # a line cut in two by a kill
            continue
    write_atomically(log, "".join(kept).encode())
