"""Atomic writing: a reader sees the old file or the whole new file, never a part of it."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headsync.errors import TrainingError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to operating system errors that have no file name, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` at the end; after an error it is deleted and `path` is unchanged."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with naming(path):
            yield unfinished
            os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write and flush to disk; after a crash or power failure the file is the old one or the whole new one."""
    _write(path, io.BytesIO(content))


def copy_atomically(source: Path, path: Path) -> None:
    """Copy in the same way; a write error names the copy, not the source."""
    with source.open("rb") as content:
        _write(path, content)


def _write(path: Path, content: BinaryIO) -> None:
    try:
        with in_one_move(path) as unfinished, unfinished.open("wb") as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}); the previous file is intact; "
            "fix this and run the same command again"
        ) from None
