"""`headsync listen`, with and without a microphone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import Say, one_line, run


class FakeSound(ModuleType):
    """A sound system with one microphone, which records one second of speech."""

    class PortAudioError(Exception):
        pass

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__("sounddevice")
        self.then = then
        self.asked: list[object] = []

    def query_devices(self, device: object, kind: str) -> dict[str, float]:
        self.asked.append(device)
        if device == "none":
            raise ValueError("No input device matching 'none'")
        return {"default_samplerate": 44_100.0}

    def InputStream(self, *, callback: Any, blocksize: int, **settings: Any) -> Any:  # noqa: N802
        def speak() -> None:
            for _ in range(10):
                callback(np.zeros((blocksize, 1), np.float32), blocksize, None, SimpleNamespace(input_overflow=False))
            self.then()

        stream = SimpleNamespace(active=True, start=lambda: threading.Thread(target=speak).start())
        stream.stop = stream.close = lambda: None
        self.stream = stream
        return stream


def test_listen_finishes_the_utterance_on_interrupt(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    says("one two three four")
    sound = FakeSound(then=lambda: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setitem(sys.modules, "sounddevice", sound)
    before = signal.getsignal(signal.SIGINT)
    result = run("listen", "--device", "2")
    assert (result.exit_code, result.stdout) == (0, "one two three\n")  # what was said within the second
    assert sound.asked == [2]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_disconnected_microphone_is_an_error(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    says("one two")
    sound = FakeSound(then=lambda: setattr(sound.stream, "active", False))
    monkeypatch.setitem(sys.modules, "sounddevice", sound)
    result = run("listen")
    assert (result.exit_code, result.stdout) == (1, "one two\n")
    assert one_line(result.stderr)
    assert "disconnected" in result.stderr


def test_listen_without_a_microphone(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    says()
    monkeypatch.setitem(sys.modules, "sounddevice", FakeSound(then=lambda: None))
    result = run("listen", "--device", "none")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "--device" in result.stderr


def test_listen_to_a_busy_device(monkeypatch: pytest.MonkeyPatch, says: Say) -> None:
    class Taken(FakeSound):
        def InputStream(self, **settings: Any) -> Any:  # noqa: N802
            stream = super().InputStream(**settings)

            def start() -> None:
                raise self.PortAudioError("Device unavailable")

            stream.start = start
            return stream

    says()
    monkeypatch.setitem(sys.modules, "sounddevice", Taken(then=lambda: None))
    result = run("listen")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "Device unavailable" in result.stderr


def test_listen_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    result = run("listen")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "pip install 'headsync[mic]'" in result.stderr


def test_listen_without_portaudio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    result = run("listen")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "libportaudio2" in result.stderr
