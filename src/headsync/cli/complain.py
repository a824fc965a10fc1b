"""How trouble is told: one red sentence on standard error, never a traceback."""

from __future__ import annotations

import sys


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
        return f"{where}{trouble.strerror}"
    return " ".join(str(trouble).split())
