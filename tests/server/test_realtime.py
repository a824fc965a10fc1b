"""OpenAI's Realtime API for transcription: the protocol without a server, and with the official client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeSession
from headsync.errors import ConfigError
from headsync.events import Endpoint, Event, Final, Partial, Word
from headsync.server.app_state import Access
from headsync.server.base_stream import SessionOptions
from headsync.server.errors import StreamError, unknown_model
from headsync.server.limits import Limits
from headsync.server.model_service import ModelService
from headsync.server.openai_realtime import RealtimeStream
from isolated_client import IsolatedClient
from serving import Running, run

Recordings = list[tuple[Path, np.ndarray, int]]
Message = dict[str, Any]
RATE = 24_000
TRANSCRIPTION = "conversation.item.input_audio_transcription"


class Scripted(FakeSession):
    """Returns given events, push by push, and at the end."""

    def __init__(self, *script: list[Event]) -> None:
        super().__init__("")
        self.script = list(script)

    def push(self, samples: Any, sample_rate: int) -> list[Event]:
        super().push(samples, sample_rate)
        return self.script.pop(0) if len(samples) and len(self.script) > 1 else []

    def finish(self) -> list[Event]:
        return self.script.pop(0)


def words(text: str, start: float) -> tuple[Word, ...]:
    return tuple(Word(word, start + i / 2, start + i / 2 + 0.4) for i, word in enumerate(text.split()))


def partial(utterance: int, text: str, committed: int, start: float) -> Partial:
    return Partial(utterance, text, words(text, start), 0.1, start + 1, committed)


def final(utterance: int, text: str, start: float) -> Final:
    return Final(utterance, text, words(text, start), 0.1, start + 2, (), 0.5)


def script() -> list[list[Event]]:
    return [
        [partial(0, "one too", 1, 0.0)],
        [partial(0, "one two three", 2, 0.0), final(0, "one two three", 0.0), Endpoint(0, "pause", 2.0)],
        [final(1, "", 3.0), partial(2, "four", 0, 4.0)],
        [final(2, "four five", 4.0)],
    ]


def model_name(name: str) -> str:
    if name not in ("", "fake"):
        raise unknown_model(name, ["fake"])
    return "fake"


def opened(*scripts: list[list[Event]], limits: Limits = Limits(), **update: Any) -> RealtimeStream:  # noqa: B008
    rest = list(scripts)
    stream = RealtimeStream(model_name, lambda _: Scripted(*(rest.pop(0) if rest else [[]])), limits)
    assert [message["type"] for message in stream.opening().messages] == ["session.created"]
    if update:
        rest.insert(0, [[]])  # an update opens a session to check its settings
        (updated,) = send(stream, "session.update", session={"type": "transcription", "audio": {"input": update}})
        assert updated["type"] == "session.updated"
    return stream


def send(stream: RealtimeStream, kind: str, **fields: Any) -> tuple[Message, ...]:
    return stream.receive(json.dumps({"type": kind, "event_id": "mine", **fields})).messages


def append(stream: RealtimeStream, seconds: float = 0.1) -> list[Message]:
    audio = base64.b64encode(bytes(2 * round(seconds * RATE))).decode()
    return list(send(stream, "input_audio_buffer.append", audio=audio))


def texts(messages: list[Message], kind: str, field: str) -> list[str]:
    return [message[field] for message in messages if message["type"] == f"{TRANSCRIPTION}.{kind}"]


def test_with_server_vad_every_utterance_is_an_item() -> None:
    stream = opened(script())
    messages = [message for _ in range(3) for message in append(stream)] + list(
        send(stream, "input_audio_buffer.commit")
    )
    assert texts(messages, "delta", "delta") == ["one", " two", " three", "four five"]
    assert texts(messages, "completed", "transcript") == ["one two three", "four five"]
    kinds = [message["type"].removeprefix("input_audio_buffer.") for message in messages]
    assert kinds.index("speech_started") == 0
    assert kinds.count("speech_started") == kinds.count("speech_stopped") == kinds.count("committed") == 2
    first, second = [message for message in messages if message["type"] == "input_audio_buffer.committed"]
    assert (first["previous_item_id"], second["previous_item_id"]) == (None, first["item_id"])
    started = [message for message in messages if message["type"] == "input_audio_buffer.speech_started"]
    assert [message["audio_start_ms"] for message in started] == [0, 4000]
    assert len({message["event_id"] for message in messages}) == len(messages)


def test_without_vad_the_client_ends_the_items() -> None:
    stream = opened(script(), [[], [final(0, "six", 0.0)]], turn_detection=None)
    messages = [message for _ in range(3) for message in append(stream)]
    assert {message["type"] for message in messages} == {f"{TRANSCRIPTION}.delta"}
    messages += send(stream, "input_audio_buffer.commit")
    assert texts(messages, "completed", "transcript") == ["one two three four five"]
    assert "".join(texts(messages, "delta", "delta")) == "one two three four five"
    append(stream)
    last = list(send(stream, "input_audio_buffer.commit"))
    assert texts(last, "completed", "transcript") == ["six"]
    assert last[-1]["item_id"] != messages[-1]["item_id"]


@given(st.data())
def test_deltas_of_an_item_concatenated_are_its_transcript(data: st.DataObject) -> None:
    """For any growing utterances, with VAD and without."""
    vad, events = data.draw(st.booleans()), []
    for utterance in range(data.draw(st.integers(1, 3))):
        said = data.draw(st.lists(st.sampled_from(["a", "bc", "d"]), max_size=4))
        for committed in sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=4))):
            tentative = data.draw(st.sampled_from(["", " x", " x y"]))
            events.append(partial(utterance, " ".join(said[:committed]) + tentative, committed, utterance * 9.0))
        events.append(final(utterance, " ".join(said), utterance * 9.0))
    stream = opened([[event] for event in events], **({} if vad else {"turn_detection": None}))
    messages = [message for _ in events[1:] for message in append(stream)] or append(stream)
    messages += send(stream, "input_audio_buffer.commit")
    for item in {message["item_id"] for message in messages if "item_id" in message}:
        own = [message for message in messages if message.get("item_id") == item]
        assert "".join(texts(own, "delta", "delta")) == "".join(texts(own, "completed", "transcript"))


@pytest.mark.parametrize(("session", "said"), [
    ({"type": "realtime"}, "transcription"),
    (3, "transcription"),
    ({"type": "transcription", "include": ["item.input_audio_transcription.logprobs"]}, "log probabilities"),
    ({"type": "transcription", "audio": {"input": {"noise_reduction": {"type": "near_field"}}}}, "noise_reduction"),
    ({"type": "transcription", "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}, "server_vad"),
    ({"type": "transcription", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}, "audio/pcm"),
    ({"type": "transcription", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}, "no model"),
    ({"type": "transcription", "audio": {"input": {"transcription": {"keywords": "one"}}}}, "list of strings"),
    ({"type": "transcription", "audio": 3}, "audio must be an object"),
])  # fmt: skip
def test_unsupported_options_are_errors_and_the_session_continues(session: Any, said: str) -> None:
    stream = opened(script())
    (error,) = send(stream, "session.update", session=session)
    assert (error["type"], error["error"]["event_id"]) == ("error", "mine")
    assert said in error["error"]["message"]
    assert texts(append(stream), "delta", "delta") == ["one"]


@pytest.mark.parametrize("message", [
    "garbage", "[]", "{}", '{"type": "response.create"}', '{"type": "input_audio_buffer.append"}', b"\x00\x00",
    '{"type": "input_audio_buffer.append", "audio": "!"}', '{"type": "input_audio_buffer.commit"}',
    '{"type": "\\ud800"}',
])  # fmt: skip
def test_invalid_messages_are_error_events(message: str | bytes) -> None:
    reply = opened(script()).receive(message)
    assert ([one["type"] for one in reply.messages], reply.close_code) == (["error"], None)


def test_settings_reach_the_recogniser() -> None:
    asked: list[SessionOptions] = []

    def remember(options: SessionOptions) -> FakeSession:
        asked.append(options)
        if options.hotwords and options.hotwords[0][0] == "elephant":
            raise ConfigError("elephant cannot be spelled")
        return FakeSession("")

    stream = RealtimeStream(model_name, remember, Limits(), "fake")
    stream.opening()
    vad = {"type": "server_vad", "silence_duration_ms": 400, "threshold": 0.5}
    audio = {"input": {"turn_detection": vad, "transcription": {"model": "fake", "keywords": ["nine"]}}}
    (updated,) = send(stream, "session.update", session={"type": "transcription", "audio": audio})
    assert updated["session"]["audio"]["input"]["transcription"]["model"] == "fake"
    assert asked == [SessionOptions("fake", {"pause_seconds": 0.4}, [("nine", 2.0)])]
    audio = {"input": {"transcription": {"keywords": ["elephant"]}}}
    (error,) = send(stream, "session.update", session={"type": "transcription", "audio": audio})
    assert error["error"]["message"] == "elephant cannot be spelled"
    append(stream)
    assert asked[-1].hotwords == [("nine", 2.0)]  # the refused update changed nothing
    (error,) = send(stream, "session.update", session={"type": "transcription"})
    assert "commit or clear" in error["error"]["message"]


def test_clear_drops_the_audio() -> None:
    stream = opened(script(), [[], [final(0, "six", 0.0)]])
    append(stream)
    assert [message["type"] for message in send(stream, "input_audio_buffer.clear")] == ["input_audio_buffer.cleared"]
    append(stream)
    assert texts(list(send(stream, "input_audio_buffer.commit")), "completed", "transcript") == ["six"]
    assert stream.usage.audio_seconds == pytest.approx(0.2)


def test_limits_end_the_connection_after_the_text() -> None:
    stream = opened(script()[:2] + script()[3:], limits=Limits(stream_seconds=0.25))
    append(stream)
    append(stream)
    reply = stream.receive(
        json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(4800)).decode()})
    )
    assert texts(list(reply.messages), "completed", "transcript") == ["four five"]
    assert (reply.messages[-1]["error"]["code"], reply.close_code) == ("too-long", 1008)
    assert opened().end(StreamError("busy", "Full.")).close_code == 1013


# the official client


@pytest.fixture(scope="module")
def server(service: ModelService) -> Iterator[Running]:
    with run(service, Limits(), "secret", access=Access((), {"gpt-4o-transcribe": "digits-en"})) as running:
        yield running


@pytest.mark.parametrize("vad", [True, False])
def test_the_openai_client_transcribes(
    server: Running, service: ModelService, recordings: Recordings, openai_client: IsolatedClient, vad: bool
) -> None:
    takes = [np.concatenate([samples / 32768, np.zeros(2 * rate)]) for _, samples, rate in recordings[:2]]
    assert {rate for _, _, rate in recordings[:2]} == {16_000}
    whole = soxr.resample(np.concatenate(takes), 16_000, RATE)
    samples = np.round(whole * 32767).clip(-32768, 32767).astype("<i2")
    session = service.open_session()
    events = session.push(samples, RATE) + session.finish()
    expected = [event.text for event in events if isinstance(event, Final) and event.text]
    assert len(expected) >= 2
    pieces = [samples[first : first + RATE // 2].tobytes() for first in range(0, len(samples), RATE // 2)]
    values = pieces, f"{server.http}/v1", "secret", {"type": "server_vad"} if vad else None
    deltas, transcripts = openai_client.call("openai_client.py", "realtime", *values)[0]
    assert [text for text in transcripts if text] == (expected if vad else [" ".join(expected)])
    assert deltas == "".join(transcripts)


def test_the_openai_client_meets_an_unknown_model(server: Running, openai_client: IsolatedClient) -> None:
    values = f"{server.http}/v1", "secret", "gpt-realtime"
    event, _ = openai_client.call("openai_client.py", "first_event", *values)
    assert (event["type"], event["error"]["code"]) == ("error", "model")
    assert "digits-en" in event["error"]["message"]
