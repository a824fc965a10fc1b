"""The examples of the how-to pages, unchanged, with a server and the pinned client libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soxr

from headsync.server.app_state import Access
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from isolated_client import IsolatedClient
from serving import run

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
Recordings = list[tuple[Path, np.ndarray, int]]


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


def test_a_live_stream(
    ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], vosk_client: IsolatedClient
) -> None:
    """The environment of Vosk's client has the package websockets, which the example needs."""
    address = f"ws://127.0.0.1:{ports[0]}/v1/stream"
    assert vosk_client.call(HOW_TO / "serve.md", "recognise", chunks(spoken[2]), address) == (spoken[1], "")


def test_openai_recording(
    ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], openai_client: IsolatedClient
) -> None:
    address = f"http://127.0.0.1:{ports[0]}/v1"
    assert openai_client.call(HOW_TO / "openai-clients.md", "transcribe", spoken[0], address) == (spoken[1], "")


def test_openai_live(
    ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], openai_client: IsolatedClient
) -> None:
    samples = np.round(soxr.resample(spoken[2] / 32768, 16_000, 24_000) * 32767).clip(-32768, 32767)
    values = chunks(samples), f"http://127.0.0.1:{ports[0]}/v1"
    assert openai_client.call(HOW_TO / "openai-clients.md", "transcribe_live", *values) == (spoken[1], spoken[1])


def test_vosk(ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], vosk_client: IsolatedClient) -> None:
    address = f"ws://127.0.0.1:{ports[0]}"
    found = vosk_client.call(HOW_TO / "vosk-clients.md", "recognise_vosk", chunks(spoken[2]), address=address)
    assert found == (spoken[1], "")


def test_wyoming(ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], wyoming_client: IsolatedClient) -> None:
    page = HOW_TO / "home-assistant.md"
    found = wyoming_client.call(page, "transcribe_wyoming", chunks(spoken[2]), port=ports[1])
    assert found == (spoken[1], spoken[1])


def test_deepgram(
    ports: tuple[int, int], spoken: tuple[Path, str, np.ndarray], deepgram_client: IsolatedClient
) -> None:
    values = chunks(spoken[2]), f"127.0.0.1:{ports[0]}"
    found = deepgram_client.call(HOW_TO / "deepgram-clients.md", "transcribe_deepgram", *values)
    assert found == (spoken[1], "")
