"""A test signal, and a recogniser with scripted output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from commands import Say
from fakes import FakeRecognizer
from headsync.cli import load_model


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(16_000, dtype=np.float32), 8000)  # two seconds
    return path


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Let the commands load a fake recogniser with the given texts, and record their arguments."""

    def install(*texts: str) -> None:
        def load(model: str | None, **settings: object) -> FakeRecognizer:
            install.asked = {"model": model, **settings}  # type: ignore[attr-defined]
            return FakeRecognizer(*texts)

        monkeypatch.setattr(load_model, "load_recognizer", load)

    return install
