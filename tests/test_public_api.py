"""The public interface as users and their type checkers see it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import typing
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import headsync
from headsync._arguments import SearchSettings
from headsync.config import DecodingConfig, EndpointConfig
from headsync.errors import AudioError, ConfigError
from recordings import DIGIT_RECORDINGS

ROOT = Path(__file__).parent.parent
RECORDING = sorted(DIGIT_RECORDINGS.glob("*.flac"))[0]


@pytest.fixture(scope="module")
def recognizer() -> headsync.Recognizer:
    return headsync.Recognizer.load("digits-en")


# type checking

ACCEPTED = """
import headsync
samples, rate = headsync.read_audio("talk.wav")
recognizer = headsync.Recognizer.load("english", beam=3, ctc_weight=0.4, pause_seconds=0.8, nbest=None, threads=2)
for final in recognizer.transcribe(samples, rate) + recognizer.transcribe("talk.wav"):
    for word in final.words:
        print(f"{word.start_seconds:7.2f} {word.text}")
with recognizer.session() as session:
    events: list[headsync.Event] = session.push(samples, sample_rate=16_000) + session.finish()

async def show() -> None:
    async with recognizer.async_session() as stream:
        for event in await stream.push(samples, rate):
            print(event)
"""
REJECTED = {
    'headsync.Recognizer.load(beem=3)': 'Unexpected keyword argument "beem"',
    'headsync.Recognizer.load(beam="x")': 'incompatible type "str"',
    'headsync.Recognizer.load(threads="2")': 'incompatible type "str"',
    'headsync.Recognizer.load(threshold="a")': 'incompatible type "str"',
    'headsync.read_audio(3)': 'incompatible type "int"',
}  # fmt: skip


def test_mypy_strict_accepts_documented_calls_and_rejects_wrong_ones(tmp_path: Path) -> None:
    lines = [*ACCEPTED.splitlines(), *REJECTED]
    (tmp_path / "snippet.py").write_text("\n".join(lines) + "\n")
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache'}"]
    command = [sys.executable, "-m", "mypy", *options, "snippet.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    found = {int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error:" in line}
    first = len(ACCEPTED.splitlines()) + 1
    assert found.keys() == set(range(first, first + len(REJECTED))), done.stdout + done.stderr
    for number, error in enumerate(REJECTED.values(), first):
        assert error in found[number]


def test_every_setting_of_the_search_is_a_typed_argument() -> None:
    fields = [*dataclasses.fields(DecodingConfig), *dataclasses.fields(EndpointConfig)]
    hints = {**typing.get_type_hints(DecodingConfig), **typing.get_type_hints(EndpointConfig)}
    wanted = {field.name: typing.Optional[hints[field.name]] for field in fields}  # noqa: UP045
    assert typing.get_type_hints(SearchSettings) == wanted


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beem": 3}, 'beem is not a setting; did you mean "beam"'),
        ({"beam": "x"}, "beam = 'x' must be a whole number"),
        ({"threshold": "a"}, "threshold = 'a' must be a number above 0"),
        ({"threshold": 0.0}, "threshold = 0.0 must be a number above 0"),
        ({"threads": "2"}, "threads = '2' must be an integer of 1 or more"),
        ({"threads": 0}, "threads = 0 must be an integer of 1 or more"),
        ({"hotwords": "nine one one"}, "hotwords = 'nine one one' must be a list"),
        ({"phrases": "nine one one"}, "phrases = 'nine one one' must be a list"),
        ({"phrases": ["nine", "ночь"]}, 'the phrase "ночь" is not possible'),
        ({"lm_weight": 0.5}, "lm_weight = 0.5 requires a language model; pass one as lm"),
    ],
)
def test_wrong_arguments_are_errors_with_the_remedy(wrong: dict[str, typing.Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        headsync.Recognizer.load(**wrong)
    assert "--" not in str(caught.value)


# transcribe


def test_transcribe_accepts_a_path_or_samples(recognizer: headsync.Recognizer) -> None:
    samples, rate = headsync.read_audio(RECORDING)
    finals = recognizer.transcribe(samples, rate)
    assert finals
    assert recognizer.transcribe(RECORDING) == recognizer.transcribe(str(RECORDING)) == finals
    with pytest.raises(AudioError, match="samples require their rate"):
        recognizer.transcribe(samples)
    with pytest.raises(AudioError, match="without sample_rate"):
        recognizer.transcribe(RECORDING, 16_000)


# sessions


def test_a_session_is_a_context_manager(recognizer: headsync.Recognizer) -> None:
    with recognizer.session() as session:
        session.push(np.zeros(1_600, np.float32), 16_000)
    with pytest.raises(AudioError, match="finished"):
        session.push(np.zeros(1_600, np.float32), 16_000)
    assert session.finish() == []


def test_an_async_session_gives_the_events_of_a_session(recognizer: headsync.Recognizer) -> None:
    samples, rate = headsync.read_audio(RECORDING)
    session = recognizer.session()
    expected = session.push(samples, rate) + session.finish()

    async def chunks() -> AsyncIterator[np.ndarray]:
        for begin in range(0, len(samples), 999):
            yield samples[begin : begin + 999]

    async def listen() -> list[headsync.Event]:
        async with recognizer.async_session() as stream:
            found = [event async for event in stream.events(chunks(), rate)]
            assert stream.audio_seconds == session.audio_seconds
        with pytest.raises(AudioError, match="closed"):
            await stream.push(samples, rate)
        return found

    assert asyncio.run(listen()) == expected


def test_the_event_loop_stays_free_while_an_async_session_computes(recognizer: headsync.Recognizer) -> None:
    samples, rate = headsync.read_audio(RECORDING)

    async def count_turns() -> int:
        async with recognizer.async_session() as stream:
            pushed, turns = asyncio.create_task(stream.push(samples, rate)), 0
            while not pushed.done():
                await asyncio.sleep(0.001)
                turns += 1
            return turns

    assert asyncio.run(count_turns()) > 5


def test_cancelled_calls_keep_their_order(recognizer: headsync.Recognizer) -> None:
    samples, rate = headsync.read_audio(RECORDING)
    session = recognizer.session()
    session.push(samples, rate)
    last = session.finish()

    async def listen() -> list[headsync.Event]:
        async with recognizer.async_session() as stream:
            pushed = asyncio.create_task(stream.push(samples, rate))
            await asyncio.sleep(0.01)
            pushed.cancel()
            return await stream.finish()

    assert asyncio.run(listen()) == last
