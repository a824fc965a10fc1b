"""Figures on the screen, and files that they go to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from headsync.errors import DataError


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair a line."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def refuse_unwritable(path: Path | None) -> None:
    """Say now, not after an hour of work, that a file cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{path}: this is a folder; name a file.")
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}; make it first.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DataError(f"{path}: this cannot be written; check its permissions, or name another file.")
