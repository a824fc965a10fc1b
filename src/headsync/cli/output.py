"""Figures, progress and errors on the terminal, figures in files. An error is one red sentence, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headsync._atomic_write import naming
from headsync.errors import DataError

_REMEDIES = {
    errno.ENOENT: "check the name",
    errno.EEXIST: "a file exists where a folder is required; name another",
    errno.EISDIR: "this is a folder; name a file",
    errno.ENOTDIR: "a file exists where a folder is required; name another",
    errno.EACCES: "check its permissions",
    errno.EROFS: "name a folder that can be written to",
    errno.ENOSPC: "free some space and try again",
}


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def check_writable(path: Path | None) -> None:
    """Raise an error before the work if its result cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{path}: this is a folder; name a file.")
    if not path.parent.is_dir():
        raise DataError(f"{path}: the folder {path.parent} does not exist; create it first.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DataError(f"{path}: cannot be written; check its permissions, or name another file.")


def write_json(path: Path, document: object) -> None:
    with naming(path):
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, if that is a terminal: a function of the count done and the total."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def print_error(error: BaseException | str) -> None:
    from rich.console import Console
    from rich.text import Text

    # A new console each time, because standard error is replaced under tests and progress bars.
    Console(file=sys.stderr).print(Text(sentence(error), style="red"), soft_wrap=True)


def sentence(error: BaseException | str) -> str:
    """An error in one line; errors of the operating system begin with the name of the file."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        remedy = _REMEDIES.get(error.errno or 0)
        return f"{where}{error.strerror}; {remedy}." if remedy else f"{where}{error.strerror}"
    return " ".join(str(error).split())
