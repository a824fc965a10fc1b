"""What a harness is: a parser of outside bytes, inputs to start from, and the errors that it may raise."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headsync.errors import HeadsyncError

DEMO_MODEL = "digits-en"


@dataclass(frozen=True)
class Harness:
    """A parser as a function of bytes. `native`: it runs C code, so the driver runs it in a process with limits."""

    parse: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    words: Sequence[bytes] = ()  # for the mutator: what is hard to guess
    native: bool = False
    max_bytes: int = 4096
    cost: int = 1  # one mutation in this many is run in the tests

    def __call__(self, data: bytes) -> None:
        """Parse; errors of the package are the answer to bad bytes, every other exception is a fault."""
        try:
            self.parse(data)
        except HeadsyncError as error:
            check_sentence(str(error))


def check_sentence(message: str) -> None:
    """An error that is shown to people: some text, without a traceback."""
    assert message.strip(), "an error without a message"
    assert "Traceback" not in message, message


@cache
def scratch() -> Path:
    """A folder of this process, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="headsync-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def written(name: str, data: bytes) -> Path:
    """The bytes as a file."""
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def sections(data: bytes, count: int) -> list[bytes]:
    """The bytes cut at lines of `%%` into this many parts."""
    parts = data.split(b"\n%%\n", count - 1)
    return parts + [b""] * (count - len(parts))
