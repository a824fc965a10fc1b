"""The examples of the how-to pages, unchanged, with a server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from headsync.server.app_state import Access
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from serving import run

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
Recordings = list[tuple[Path, np.ndarray, int]]


def example(page: str, name: str) -> Any:
    """A function of a page, after all its code blocks have run."""
    text, names = (HOW_TO / page).read_text(encoding="utf-8"), {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names[name]


@pytest.fixture(scope="module")
def ports(service: ModelService) -> Iterator[tuple[int, int]]:
    """The HTTP and the Wyoming port of a server with the aliases of the pages."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted(HOW_TO.glob("*-clients.md")))
    aliases = re.findall(r"--alias ([\w.-]+)=digits-en", pages)
    with run(service, Limits(), access=Access((), dict.fromkeys(aliases, "digits-en"))) as running:
        yield running.port, running.wyoming


@pytest.fixture(scope="module")
def spoken(recordings: Recordings) -> tuple[Path, str, np.ndarray]:
    """A recording at 16 kHz: its file, its text and its samples."""
    path, samples, rate = recordings[0]
    assert rate == 16_000
    return path, path.with_suffix(".txt").read_text(encoding="utf-8").strip(), samples


def chunks(samples: np.ndarray) -> list[bytes]:
    return [piece.astype("<i2").tobytes() for piece in np.array_split(samples, 12)]


def test_a_live_stream(ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray]) -> None:
    address = f"ws://127.0.0.1:{ports[0]}/v1/stream"
    assert example("serve.md", "recognise")(chunks(spoken[2]), address) == spoken[1]


def test_openai_recording(ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray]) -> None:
    assert example("openai-clients.md", "transcribe")(spoken[0], f"http://127.0.0.1:{ports[0]}/v1") == spoken[1]


def test_openai_live(
    ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    samples = np.round(soxr.resample(spoken[2] / 32768, 16_000, 24_000) * 32767).clip(-32768, 32767)
    live = example("openai-clients.md", "transcribe_live")
    assert asyncio.run(live(chunks(samples), f"http://127.0.0.1:{ports[0]}/v1")) == spoken[1]
    assert capsys.readouterr().out == spoken[1]


def test_vosk(ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray]) -> None:
    recognise = example("vosk-clients.md", "recognise_vosk")
    assert recognise(chunks(spoken[2]), address=f"ws://127.0.0.1:{ports[0]}") == spoken[1]


def test_wyoming(
    ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    transcribe = example("home-assistant.md", "transcribe_wyoming")
    assert asyncio.run(transcribe(chunks(spoken[2]), port=ports[1])) == spoken[1]
    assert capsys.readouterr().out == spoken[1]


@pytest.mark.filterwarnings("ignore:websockets:DeprecationWarning")  # the SDK imports old names
def test_deepgram(ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray]) -> None:
    transcribe = example("deepgram-clients.md", "transcribe_deepgram")
    assert transcribe(chunks(spoken[2]), f"127.0.0.1:{ports[0]}") == spoken[1]
