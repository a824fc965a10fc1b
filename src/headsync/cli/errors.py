"""Errors for users: one red sentence on standard error, never a traceback."""

from __future__ import annotations

import errno
import sys

_REMEDIES = {
    errno.ENOENT: "check the name",
    errno.EEXIST: "a file exists where a folder is required; name another",
    errno.EISDIR: "this is a folder; name a file",
    errno.ENOTDIR: "a file exists where a folder is required; name another",
    errno.EACCES: "check its permissions",
    errno.EROFS: "name a folder that can be written to",
    errno.ENOSPC: "free some space and try again",
}


def print_error(error: BaseException | str) -> None:
    """Print an error as a sentence."""
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
