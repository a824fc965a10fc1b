"""How trouble is told: one red sentence on standard error, never a traceback."""

from __future__ import annotations

import errno
import sys

REMEDIES = {
    errno.ENOENT: "check the name",
    errno.EEXIST: "a file is where a folder should be, so name another",
    errno.EISDIR: "this is a folder, so name a file",
    errno.ENOTDIR: "a file is where a folder should be, so name another",
    errno.EACCES: "check its permissions",
    errno.EROFS: "name a place that can be written to",
    errno.ENOSPC: "make room and try again",
}


def complain(trouble: BaseException | str) -> None:
    """Print the sentence; what else goes on is the caller's business."""
    from rich.console import Console
    from rich.text import Text

    # A new console each time, because standard error is replaced under tests and progress bars.
    Console(file=sys.stderr).print(Text(sentence(trouble), style="red"), soft_wrap=True)


def sentence(trouble: BaseException | str) -> str:
    """Put trouble into one line; the operating system's errors name their file first."""
    if isinstance(trouble, OSError) and trouble.strerror:
        where = f"{trouble.filename}: " if trouble.filename is not None else ""
        remedy = REMEDIES.get(trouble.errno or 0)
        return f"{where}{trouble.strerror}; {remedy}." if remedy else f"{where}{trouble.strerror}"
    return " ".join(str(trouble).split())
