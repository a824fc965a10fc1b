"""Calls of the command line for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner, Result

from headsync.cli.app import app

Say = Callable[..., None]


def run(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def one_line(text: str) -> bool:
    return text.endswith("\n") and text.count("\n") == 1 and "Traceback" not in text


def environment() -> dict[str, str]:
    """The tests' own import path, for children."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "100"}
