"""The protocol of `/v1/stream`, without a server: a recogniser with scripted words, and messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeRecognizer, FakeSession
from headsync.errors import AudioError, ConfigError
from headsync.events import Event
from headsync.server.base_stream import SessionOptions
from headsync.server.errors import CLOSE_CODES, StreamError
from headsync.server.limits import Limits
from headsync.server.protocol import NativeStream, OpenSession, Reply

RATE = 16_000
TEXT = "one two three four"
LIMITS = Limits(stream_seconds=5.0)


def open_fake(options: SessionOptions) -> FakeSession:
    return FakeRecognizer(TEXT).session()


def begun(**fields: Any) -> NativeStream:
    stream = NativeStream(["fake"], open_fake, LIMITS)
    ready = stream.receive(json.dumps({"type": "start", **fields}))
    assert [message["type"] for message in ready.messages] == ["ready"]
    return stream


def sound(seconds: float, dtype: str = "<i2") -> bytes:
    return np.zeros(round(seconds * RATE), dtype).tobytes()


def only_error(reply: Reply) -> str:
    (message,) = reply.messages
    assert message["type"] == "error"
    assert message["message"]
    assert "\n" not in message["message"]
    assert reply.close_code == CLOSE_CODES[message["code"]]
    return str(message["code"])


def test_a_whole_stream() -> None:
    stream = begun(version=1, sample_rate=RATE, format="pcm16", model=None, attention=False)
    partials = stream.receive(sound(1.0))
    assert [message["text"] for message in partials.messages] == ["one", "one two"]
    assert partials.close_code is None
    assert [event.to_dict() for event in partials.events] == list(partials.messages)
    last = stream.receive('{"type": "finish"}')
    final, done = last.messages
    assert (final["type"], final["text"]) == ("final", "one two three")
    assert (done["type"], done["audio_seconds"]) == ("done", 1.0)
    assert done["computing_seconds"] >= 0
    assert last.close_code == 1000


def test_ready_has_version_model_and_limits() -> None:
    (ready,) = NativeStream(["fake"], open_fake, LIMITS).receive('{"type": "start"}').messages
    assert (ready["version"], ready["model"]) == (1, "fake")
    assert ready["limits"]["stream_seconds"] == 5.0
    assert ready["limits"]["message_bytes"] == LIMITS.message_bytes


@given(st.data())
def test_any_cutting_gives_the_same_messages(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["pcm16", "float32"]))
    audio = (
        np.random.default_rng(1).integers(0, 99, round(1.3 * RATE)).astype({"pcm16": "<i2", "float32": "<f4"}[dtype])
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, audio.nbytes), max_size=12)))
    pieces = [audio.tobytes()[a:b] for a, b in zip([0, *cuts], [*cuts, audio.nbytes], strict=True)]

    def heard(pieces: list[bytes]) -> list[dict[str, Any]]:
        seen: list[np.ndarray] = []
        stream = NativeStream(["fake"], lambda *_: Remembering(seen), LIMITS)
        stream.receive(json.dumps({"type": "start", "format": dtype}))
        messages = [message for piece in pieces for message in stream.receive(piece).messages]
        *last, done = stream.receive('{"type": "finish"}').messages
        assert np.array_equal(np.concatenate(seen), audio)
        return [*messages, *last, {**done, "computing_seconds": 0}]

    assert heard(pieces) == heard([audio.tobytes()])


class Remembering(FakeSession):
    """Keeps the samples that it is given."""

    def __init__(self, seen: list[np.ndarray]) -> None:
        super().__init__(TEXT)
        self.seen = seen

    def push(self, samples: Any, sample_rate: int) -> list[Event]:
        self.seen.append(samples)
        return super().push(samples, sample_rate)


def test_half_a_sample_at_the_end_is_dropped() -> None:
    stream = begun()
    stream.receive(sound(0.5) + b"\x01")
    assert stream.receive('{"type": "finish"}').messages[-1]["audio_seconds"] == 0.5


@pytest.mark.parametrize(("message", "code"), [
    ("garbage", "message"),
    ("[1, 2]", "message"),
    ("[" * 100_000, "message"),
    ('{"type": 1}', "message"),
    ("{}", "message"),
    ('{"type": "stop"}', "message"),
    ('{"type": "finish"}', "message"),
    (b"\x00\x00", "message"),
    ('{"type": "start", "version": 2}', "version"),
    ('{"type": "start", "sample_rate": "fast"}', "setting"),
    ('{"type": "start", "sample_rat": 8000}', "setting"),
    ('{"type": "start", "format": "mp3"}', "setting"),
    ('{"type": "start", "settings": 3}', "setting"),
    ('{"type": "start", "settings": {"beam": 99}}', "setting"),
    ('{"type": "start", "hotwords": "one"}', "setting"),
    ('{"type": "start", "hotwords": [1]}', "setting"),
    ('{"type": "start", "hotwords": [{"phrase": "one", "boost": "much"}]}', "setting"),
    ('{"type": "start", "phrases": "one"}', "setting"),
    ('{"type": "start", "phrases": [1]}', "setting"),
    ('{"type": "start", "model": "another"}', "model"),
    ('{"type": "start", "sample_rate": 7}', "audio"),
])  # fmt: skip
def test_invalid_start_messages_are_errors(message: str | bytes, code: str) -> None:
    def picky(options: SessionOptions) -> FakeSession:
        if options.settings:
            raise ConfigError("beam = 99 is too much")
        return Choosy(TEXT)

    assert only_error(NativeStream(["fake"], picky, LIMITS).receive(message)) == code


@pytest.mark.parametrize("field", [
    '"model": "\\ud800"', '"format": "\\udfff"', '"\\ud800": 1', '"settings": {"\\ud800": 1}',
    '"settings": {"beam": "\\ud800"}', '"hotwords": ["\\ud800"]', '"hotwords": [{"phrase": "\\ud800"}]',
    '"type": "\\ud800"',
])  # fmt: skip
def test_a_lone_surrogate_is_an_error_with_an_answer(field: str) -> None:
    reply = NativeStream(["fake"], open_fake, LIMITS).receive(f'{{"type": "start", {field}}}')
    assert only_error(reply) == "message"
    assert "surrogate" in reply.messages[0]["message"]


def noting_session(chosen: list[SessionOptions]) -> OpenSession:
    def open_session(options: SessionOptions) -> FakeSession:
        chosen.append(options)
        return FakeRecognizer(TEXT).session()

    return open_session


def test_the_delay_can_be_chosen_in_the_query_and_start_has_precedence() -> None:
    chosen: list[SessionOptions] = []
    query = {"lookahead_ms": "160", "threshold": "0.75", "pause_seconds": ".5", "token": "secret", "centre_ms": "240"}
    stream = NativeStream(["fake"], noting_session(chosen), LIMITS, query=query)
    assert stream.opening() == Reply()
    stream.receive('{"type": "start", "settings": {"threshold": 0.9, "beam": 4}}')
    budget = {"lookahead_ms": 160.0, "threshold": 0.9, "pause_seconds": 0.5, "centre_ms": 240.0}
    assert chosen[0].settings == {**budget, "beam": 4}


@pytest.mark.parametrize(("query", "sentence"), [
    ({"lookahead_ms": "long"}, 'query: lookahead_ms = "long" must be a number above 0, for example 320'),
    ({"lookahead_ms": ""}, 'query: lookahead_ms = "" must be a number above 0, for example 320'),
    ({"threshold": "nan"}, 'query: threshold = "nan" must be a number above 0, for example 1.0'),
    ({"threshold": "-1"}, 'query: threshold = "-1" must be a number above 0, for example 1.0'),
    ({"pause_seconds": "inf"}, 'query: pause_seconds = "inf" must be a number above 0, for example 0.8'),
    ({"right_ms": "0"}, 'query: right_ms = "0" must be a number above 0, for example 384'),
    ({"lookahead": "320"}, 'query: unknown parameter lookahead; did you mean "lookahead_ms"?'),
])  # fmt: skip
def test_a_bad_query_is_one_sentence_at_the_opening(query: dict[str, str], sentence: str) -> None:
    reply = NativeStream(["fake"], open_fake, LIMITS, query=query).opening()
    assert only_error(reply) == "setting"
    assert reply.messages[0]["message"] == sentence


def test_escaped_surrogate_pairs_are_valid() -> None:
    reply = NativeStream(["fake"], open_fake, LIMITS).receive('{"type": "start", "model": "\\ud83d\\ude00"}')
    assert reply.messages[0]["message"] == 'There is no model "\U0001f600"; this server has "fake".'


@pytest.mark.parametrize(("typo", "said"), [
    ("zzz", "known here: attention, format, hotwords, model, phrases, progress, sample_rate, settings, version"),
    ("hotword", 'did you mean "hotwords"?'),
    ("seting", 'did you mean "settings"?'),
    ("sample_rat", 'did you mean "sample_rate"?'),
])  # fmt: skip
def test_an_unknown_field_of_start_lists_the_known_ones(typo: str, said: str) -> None:
    (error,) = NativeStream(["fake"], open_fake, LIMITS).receive(json.dumps({"type": "start", typo: 1})).messages
    assert error["message"] == f"start: unknown field {typo}; {said}"


class Choosy(FakeSession):
    """As a real session, refuses rates that cannot be."""

    def push(self, samples: Any, sample_rate: int) -> list[Event]:
        if sample_rate < 4000:
            raise AudioError("a sample rate of 7 is not within 4000 to 192000")
        return super().push(samples, sample_rate)


def test_a_second_start_is_refused() -> None:
    assert only_error(begun().receive('{"type": "start"}')) == "message"


def test_settings_and_hotwords_reach_the_session() -> None:
    asked: list[SessionOptions] = []

    def remember(options: SessionOptions) -> FakeSession:
        asked.append(options)
        return open_fake(options)

    hotwords = ["nine", {"phrase": "two one", "boost": 3}, {"phrase": "six"}]
    start = {"type": "start", "model": "other", "attention": True, "settings": {"beam": 4}, "hotwords": hotwords}
    start["phrases"] = ["two one", "[unk]"]
    (ready,) = NativeStream(["fake", "other"], remember, LIMITS).receive(json.dumps(start)).messages
    assert ready["model"] == "other"
    assert asked == [
        SessionOptions(
            "other", {"beam": 4}, [("nine", 2.0), ("two one", 3.0), ("six", 2.0)], True, ("two one", "[unk]")
        )
    ]


def test_progress_messages_are_optional() -> None:
    def told(**fields: Any) -> list[tuple[str, Any]]:
        stream = begun(**fields)
        messages = [message for _ in range(10) for message in stream.receive(sound(0.125)).messages]
        return [(message["type"], message.get("audio_seconds")) for message in messages if message["type"] != "partial"]

    assert told() == []
    assert told(progress=True) == [("progress", 0.5), ("progress", 1.0)]


def test_a_stream_beyond_the_limit_gets_its_text_and_the_reason() -> None:
    stream = begun()
    assert stream.receive(sound(5.0)).close_code is None
    reply = stream.receive(sound(0.1))
    assert [message["type"] for message in reply.messages] == ["final", "error"]
    assert reply.messages[0]["text"] == TEXT
    assert (reply.messages[1]["code"], reply.close_code) == ("too-long", 1008)
    assert [type(event).__name__ for event in reply.events] == ["Final"]


def test_an_idle_stream_gets_its_text_and_the_reason() -> None:
    stream = begun()
    stream.receive(sound(1.0))
    reply = stream.end(StreamError("idle", "Nothing came."))
    assert [message["type"] for message in reply.messages] == ["final", "error"]


def test_an_idle_connection_that_never_started_gets_the_reason() -> None:
    assert only_error(NativeStream(["fake"], open_fake, LIMITS).end(StreamError("idle", "Nothing came."))) == "idle"


def test_a_failed_stream_is_not_called_again() -> None:
    stream = begun()
    stream.receive(sound(1.0))
    assert only_error(stream.end(StreamError("internal", "Broken."))) == "internal"
