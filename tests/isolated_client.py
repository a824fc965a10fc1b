"""Client libraries of other projects, each in a virtual environment with pinned packages.

An environment is created once, in `build/clients`; a change of its pins or of Python makes another one.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / "tests" / "server" / "clients"
ENVIRONMENTS = ROOT / "build" / "clients"


def encode_value(value: Any) -> Any:
    """Bytes and paths, which JSON does not have."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class IsolatedClient:
    """The Python of an environment that has a client library and not headsync."""

    python: Path

    def call(self, source: Path | str, name: str, *values: Any, **options: Any) -> tuple[Any, str]:
        """The result of a function of a script of `tests/server/clients`, or of a page, and what it printed."""
        given = json.dumps({"values": values, "options": options}, default=encode_value)
        words = [str(self.python), "-I", str(CLIENTS / "call.py"), str(CLIENTS / source), name]
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        return answer["result"], answer["printed"]


def install(folder: Path, requirements: Path) -> None:
    venv.create(folder, clear=True, symlinks=True)
    words = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--retries", "1"]
    words += ["--disable-pip-version-check", "--quiet", "--no-deps", "--no-compile", "--requirement", str(requirements)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode and "connection broken" in done.stderr:
        pytest.skip(f"the package index cannot be reached to install {requirements.name}")
    assert done.returncode == 0, done.stderr


@cache
def isolated_client(name: str) -> IsolatedClient:
    """The client with the pins of `requirements-NAME.txt`."""
    requirements = CLIENTS / f"requirements-{name}.txt"
    key = hashlib.sha256(requirements.read_bytes() + f"{sys.version}{sys.prefix}".encode()).hexdigest()
    folder = ENVIRONMENTS / f"{name}-{key[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test processes
        if not (folder / "complete").exists():
            install(folder, requirements)
            (folder / "complete").touch()
    return IsolatedClient(folder / "bin" / "python")
