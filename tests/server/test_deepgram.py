"""Deepgram's live API: the protocol without a server, and with the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeRecognizer, FakeSession
from headsync.events import Final
from headsync.server.app_state import Access
from headsync.server.base_stream import SessionOptions
from headsync.server.deepgram import DeepgramStream
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from isolated_client import IsolatedClient
from serving import Running, run

Recordings = list[tuple[Path, np.ndarray, int]]
RATE = 16_000
QUERY = {"encoding": "linear16", "sample_rate": str(RATE), "model": "fake"}


def opened(limits: Limits = Limits(), **query: str) -> tuple[DeepgramStream, list[SessionOptions]]:  # noqa: B008
    options: list[SessionOptions] = []

    def open_fake(given: SessionOptions) -> FakeSession:
        options.append(given)
        return FakeRecognizer("one two three").session()

    stream = DeepgramStream(list({**QUERY, **query}.items()), open_fake, limits, "id")
    assert stream.opening().close_code is None
    return stream, options


def sound(seconds: float) -> bytes:
    return bytes(2 * round(seconds * RATE))


def test_final_results_alone_by_default() -> None:
    stream, _ = opened()
    assert stream.receive(sound(2.0)).messages == ()
    assert stream.receive('{"type": "KeepAlive"}').messages == ()
    reply = stream.receive('{"type": "CloseStream"}')
    result, metadata = reply.messages
    assert (result["type"], result["is_final"], result["start"]) == ("Results", True, 0.0)
    assert result["channel"]["alternatives"][0]["transcript"] == "one two three"
    assert (metadata["type"], metadata["duration"], reply.close_code) == ("Metadata", 2.0, 1000)


def test_interim_results_speech_and_utterance_events() -> None:
    stream, _ = opened(interim_results="true", vad_events="true", utterance_end_ms="1000")
    messages = [*stream.receive(sound(2.0)).messages, *stream.receive(b"").messages]
    kinds = [message["type"] for message in messages]
    assert kinds[0] == "SpeechStarted"
    assert kinds[-3:] == ["Results", "UtteranceEnd", "Metadata"]
    assert kinds.count("SpeechStarted") == 1
    assert [message["is_final"] for message in messages if message["type"] == "Results"][:1] == [False]


def test_finalize_continues_with_the_times_of_the_stream() -> None:
    stream, options = opened()
    stream.receive(sound(2.0))
    (first,) = stream.receive('{"type": "Finalize"}').messages
    assert first["from_finalize"]
    stream.receive(sound(2.0))
    second, metadata = stream.receive('{"type": "CloseStream"}').messages
    words = [message["channel"]["alternatives"][0]["words"] for message in (first, second)]
    assert [word["start"] for word in words[1]] == pytest.approx([2.0 + word["start"] for word in words[0]])
    assert second["start"] == pytest.approx(first["start"] + first["duration"])
    assert (metadata["duration"], len(options)) == (4.0, 2)


def test_phrases_and_endpointing_are_options_of_the_session() -> None:
    _, (options,) = opened(keyterm="nine one", keywords="two:3.5", endpointing="800")
    assert options == SessionOptions("fake", {"pause_seconds": 0.8}, [("nine one", 2.0), ("two", 3.5)])


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoding", "opus"), ("sample_rate", "fast"), ("channels", "2"), ("diarize", "true"), ("endpointing", "soon")],
)
def test_unsupported_options_are_refused(name: str, value: str) -> None:
    stream = DeepgramStream(list({**QUERY, name: value}.items()), lambda _: FakeSession(""), Limits(), "id")
    reply = stream.opening()
    assert (reply.messages[0]["type"], reply.messages[0]["variant"], reply.close_code) == ("Error", "setting", 1008)


@pytest.mark.parametrize("message", ["garbage", "{}", '{"type": "Configure"}'])
def test_unknown_messages_are_errors(message: str) -> None:
    reply = opened()[0].receive(message)
    assert (reply.messages[0]["variant"], reply.close_code) == ("message", 1008)


def test_too_much_audio_ends_with_the_last_results() -> None:
    reply = opened(Limits(stream_seconds=1.0))[0].receive(sound(2.0))
    assert [message["type"] for message in reply.messages] == ["Results", "Error"]
    assert reply.messages[-1]["variant"] == "too-long"
    json.dumps(reply.messages)


# the official SDK


@pytest.fixture(scope="module")
def server(service: ModelService) -> Iterator[Running]:
    with run(service, Limits(), "secret", access=Access((), {"nova-3": "digits-en"})) as running:
        yield running


def listen(client: IsolatedClient, server: Running, samples: np.ndarray, **query: Any) -> list[Any]:
    """All messages that the SDK receives."""
    pieces = [piece.tobytes() for piece in np.array_split(samples, 20)]
    query = {"model": "nova-3", "encoding": "linear16", "sample_rate": RATE, **query}
    return client.call("deepgram_client.py", "listen", pieces, server.http, "secret", query)[0]


def test_the_sdk_transcribes(
    server: Running, service: ModelService, recordings: Recordings, deepgram_client: IsolatedClient
) -> None:
    (_, first, rate), (_, second, _) = recordings[:2]
    assert rate == RATE
    samples = np.concatenate([first, np.zeros(2 * rate, "<i2"), second])
    session = service.open_session()
    events = session.push(samples, rate) + session.finish()
    expected = [event for event in events if isinstance(event, Final)]
    messages = listen(deepgram_client, server, samples, interim_results=True)
    results = [message for message in messages if message["type"] == "Results"]
    finals = [message["channel"]["alternatives"][0] for message in results if message["is_final"]]
    assert len(results) > len(finals)
    assert [final["transcript"] for final in finals] == [final.text for final in expected]
    words = [word["word"] for final in finals for word in final["words"]]
    assert words == [word.text for final in expected for word in final.words]
    assert messages[-1]["type"] == "Metadata"
    assert messages[-1]["duration"] == pytest.approx(len(samples) / rate, abs=0.01)


def test_the_sdk_meets_a_wrong_key_and_an_unknown_model(server: Running, deepgram_client: IsolatedClient) -> None:
    assert deepgram_client.call("deepgram_client.py", "refusal", server.http, "wrong")[0] == 401
    (error,) = listen(deepgram_client, server, np.zeros(RATE, "<i2"), model="whisper")
    assert (error["type"], error["variant"]) == ("Error", "model")
