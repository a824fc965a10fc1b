"""Files that are written in one move: a reader sees the old one or the whole new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headsync.errors import TrainingError


@contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of `path` at the end; where writing fails nothing of it is left."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Either the whole new file or the old one, whatever happens, even to the power."""
    try:
        with in_one_move(path) as unfinished, unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}); what was there before is intact, "
            "put this right and start the same command again"
        ) from None
