"""A served model, and real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from headsync.frontend.audio import mix_down, read_audio
from headsync.recognizer import Recognizer
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from isolated_client import IsolatedClient, isolated_client
from recordings import DIGIT_RECORDINGS
from serving import Running, run

DEMO = DIGIT_RECORDINGS


@pytest.fixture(scope="session")
def recognizer() -> Recognizer:
    return Recognizer.load("digits-en")


@pytest.fixture(scope="session")
def service(recognizer: Recognizer) -> ModelService:
    return ModelService(recognizer, (), batching=True)


@pytest.fixture(scope="session")
def recordings() -> list[tuple[Path, np.ndarray, int]]:
    """The bundled recordings as 16-bit samples."""
    takes = []
    for path in sorted(DEMO.glob("*.flac")):
        samples, rate = read_audio(path)
        takes.append((path, np.round(mix_down(samples) * 32768).clip(-32768, 32767).astype("<i2"), rate))
    return takes


@pytest.fixture(scope="module")
def running(service: ModelService) -> Iterator[Running]:
    """A server with default options, without a token."""
    with run(service, Limits(idle_seconds=20.0)) as server:
        yield server


@pytest.fixture
def start(service: ModelService) -> Iterator[Callable[..., Running]]:
    """Start a server with the given limits."""
    with ExitStack() as opened:
        yield lambda token=None, **limits: opened.enter_context(run(service, Limits(**limits), token))


@pytest.fixture(scope="session")
def openai_client() -> IsolatedClient:
    return isolated_client("openai")


@pytest.fixture(scope="session")
def deepgram_client() -> IsolatedClient:
    return isolated_client("deepgram")


@pytest.fixture(scope="session")
def wyoming_client() -> IsolatedClient:
    return isolated_client("wyoming")


@pytest.fixture(scope="session")
def vosk_client() -> IsolatedClient:
    return isolated_client("vosk")
