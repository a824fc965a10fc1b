"""The call paths on the architecture page are those that run."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import headsync
from headsync.frontend.audio import mix_down, read_audio
from recordings import DIGIT_RECORDINGS

PACKAGE = Path(headsync.__file__).parent
PAGE = (Path(__file__).parent.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
DEMO = DIGIT_RECORDINGS / "1-slt.flac"


class Tracer:
    """The files of the package in which functions were called, in the order of their first call."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class: imports
        if event == "call" and is_function and path.is_relative_to(PACKAGE):
            self.files.setdefault(path.relative_to(PACKAGE).as_posix())


def traced(work: Callable[[Tracer], Any]) -> set[str]:
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        work(tracer)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return set(tracer.files)


def listed(heading: str) -> set[str]:
    """The files of a numbered list and of the line "Shared"; each may appear once."""
    (section,) = re.findall(rf"^### {heading}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    numbered = re.findall(r"^\d+\. `([\w/.]+\.py)`", section, re.MULTILINE)
    shared = re.findall(r"`([\w/.]+\.py)`", section[section.index("\nShared:") :])
    files = [*numbered, *shared]
    assert len(files) == len(set(files)), "a file appears twice"
    return set(files)


@pytest.fixture(scope="module")
def recognizer() -> headsync.Recognizer:
    return headsync.Recognizer.load("digits-en")


def test_from_push_to_final(recognizer: headsync.Recognizer) -> None:
    samples, rate = read_audio(DEMO)
    session = recognizer.session(attention=True)

    def work(_: Tracer) -> None:
        for first in range(0, len(samples), 1600):
            session.push(samples[first : first + 1600], rate)
        session.finish()

    assert traced(work) == listed("From push to Final")


def test_from_a_websocket_message_to_its_answer(recognizer: headsync.Recognizer) -> None:
    from headsync.server.limits import Limits
    from headsync.server.model_service import ModelService
    from serving import run, stream

    samples, rate = read_audio(DEMO)
    pcm = np.round(mix_down(samples) * 32767).astype("<i2")
    service = ModelService(recognizer, (), batching=True)

    def work(tracer: Tracer) -> None:
        with run(service, Limits(idle_seconds=60.0)) as server:
            tracer.files.clear()  # the start of the server is not part of the path
            asyncio.run(stream(server.ws("/v1/stream"), pcm, rate))
            path = dict(tracer.files)
        tracer.files = path  # without the end of the server

    recognition = listed("From push to Final")
    assert traced(work) - recognition == listed("From a WebSocket message to its answer") - recognition


def test_from_toml_to_a_model() -> None:
    from headsync.nn.model import Model
    from headsync.recipe import load_config

    recipe = Path(__file__).parent.parent / "recipes" / "toy" / "toy.toml"

    def work(_: Tracer) -> None:
        config = load_config(recipe)
        Model(config, config.columns, classes=8)

    assert traced(work) == listed("From TOML to a model")


def test_from_a_manifest_to_the_gradient(tmp_path: Path) -> None:
    from headsync.corpora import toy
    from headsync.training import train
    from training.tiny import TINY

    toy.prepare(tmp_path / "toy", strings=toy.Counts(train=10, dev=2, test=2))
    (tmp_path / "recipe.toml").write_text(TINY.format(corpus=tmp_path / "toy"), encoding="utf-8")
    overrides = [f"training.folder={tmp_path}/run", "training.epochs=1"]

    def work(_: Tracer) -> None:
        train(tmp_path / "recipe.toml", overrides, say=lambda _: None)

    network = listed("From TOML to a model")
    assert traced(work) - network == listed("From a manifest to the gradient") - network
