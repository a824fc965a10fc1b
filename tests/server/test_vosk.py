"""The protocol of vosk-server, without a server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeRecognizer, FakeSession
from headsync.events import Alternative, Event, Final, Partial, Word
from headsync.server.base_stream import Reply, SessionOptions
from headsync.server.errors import StreamError
from headsync.server.limits import Limits
from headsync.server.vosk import VoskStream

RATE = 8000


def open_fake(options: SessionOptions) -> FakeSession:
    return FakeRecognizer("one two three").session()


def sound(seconds: float, rate: int = RATE) -> bytes:
    return np.zeros(round(seconds * rate), "<i2").tobytes()


class Scripted(FakeSession):
    """Returns given events, push by push, and at the end."""

    def __init__(self, *script: list[Event]) -> None:
        super().__init__("")
        self.script = list(script)

    def push(self, samples: Any, sample_rate: int) -> list[Event]:
        super().push(samples, sample_rate)
        return self.script.pop(0) if len(samples) else []

    def finish(self) -> list[Event]:
        return self.script.pop(0)


def final(text: str, at: float, *alternatives: Alternative) -> Final:
    words = tuple(Word(word, at + i, at + i + 0.5, 0.75) for i, word in enumerate(text.split()))
    return Final(0, text, words, 0.1, at, (), 0.5, alternatives)


def test_a_whole_conversation() -> None:
    stream = VoskStream(open_fake, Limits())
    assert stream.receive('{ "config" : { "sample_rate" : 16000 } }') == Reply()
    assert stream.receive(sound(0.2, 16_000)).messages == ({"partial": ""},)
    assert stream.receive(sound(0.4, 16_000)).messages == ({"partial": "one"},)
    assert stream.receive(sound(0.1, 16_000)).messages == ({"partial": "one"},)
    last = stream.receive('{"eof" : 1}')
    (reply,) = last.messages
    assert reply == {
        "result": [
            {"conf": 1.0, "end": 0.3, "start": 0.0, "word": "one"},
            {"conf": 1.0, "end": 0.6, "start": 0.3, "word": "two"},
        ],
        "text": "one two",
    }
    assert last.close_code == 1000


def test_without_a_config_the_rate_is_that_of_vosk_server() -> None:
    stream = VoskStream(open_fake, Limits())
    assert stream.receive(sound(0.5, 8000)).messages == ({"partial": "one"},)


def test_words_can_be_left_out() -> None:
    stream = VoskStream(open_fake, Limits())
    stream.receive('{"config": {"words": false, "phrase_list": ["one"], "model": "other"}}')
    stream.receive(sound(1.0))
    assert stream.receive('{"eof": 1}').messages == ({"text": "one two three"},)


def test_eof_at_once_is_an_empty_result() -> None:
    reply = VoskStream(open_fake, Limits()).receive('{"eof" : 1}')
    assert (reply.messages, reply.close_code) == (({"text": ""},), 1000)


def test_an_utterance_that_ends_is_a_result_and_partials_begin_anew() -> None:
    script: list[list[Event]] = [[Partial(0, "for", (), 0.0, 1.0)], [final("four", 1.0)], [], []]
    stream = VoskStream(lambda *_: Scripted(*script), Limits())
    assert stream.receive(sound(0.1)).messages == ({"partial": "for"},)
    (result,) = stream.receive(sound(0.1)).messages
    assert result["text"] == "four"
    assert stream.receive(sound(0.1)).messages == ({"partial": ""},)
    assert stream.receive('{"eof": 1}').messages == ({"text": ""},)


def test_two_utterances_in_one_message_are_one_reply() -> None:
    script: list[list[Event]] = [[final("four", 1.0), final("five six", 4.0)]]
    (result,) = VoskStream(lambda *_: Scripted(*script), Limits()).receive(sound(0.1)).messages
    assert result["text"] == "four five six"
    assert [word["start"] for word in result["result"]] == [1.0, 4.0, 5.0]
    assert {word["conf"] for word in result["result"]} == {0.75}


def test_reset_ends_the_utterance_and_times_continue() -> None:
    stream = VoskStream(open_fake, Limits())
    stream.receive(sound(0.5))
    first = stream.receive('{"reset" : 1}')
    assert (first.messages[0]["text"], first.close_code) == ("one", None)
    stream.receive(sound(0.5))
    assert stream.receive('{"eof" : 1}').messages[0]["result"][0]["start"] == 0.5


def test_alternatives() -> None:
    asked: list[Any] = []

    def remember(options: SessionOptions) -> Scripted:
        asked.append(options.settings)
        return Scripted([final("four", 1.0, Alternative("for", 0.0), Alternative("five", 50.0))])

    stream = VoskStream(remember, Limits(beam=7))
    stream.receive('{"config": {"max_alternatives": 10}}')
    (reply,) = stream.receive('{"eof": 1}').messages
    best, second, third = reply["alternatives"]
    assert asked == [{"nbest": 7}]
    assert best == {"result": [{"end": 1.5, "start": 1.0, "word": "four"}], "text": "four", "confidence": 1.0}
    assert second == {"text": "for", "confidence": 1.0}
    assert third["confidence"] < 1e-9


def test_the_words_of_a_phrase_list_are_the_only_ones() -> None:
    asked: list[SessionOptions] = []

    def remember(options: SessionOptions) -> FakeSession:
        asked.append(options)
        return open_fake(options)

    stream = VoskStream(remember, Limits())
    message = '{"config": {"sample_rate": 16000, "phrase_list": ["oh one two three", "two one", "[unk]"]}}'
    assert stream.receive(message).close_code is None
    assert stream.receive('{"config": {"words": true}}').close_code is None  # the list stays
    stream.receive(sound(0.1, 16_000))
    assert asked == [SessionOptions(phrases=("oh", "one", "two", "three", "[unk]"))]


def test_a_config_after_audio_is_ignored() -> None:
    stream = VoskStream(open_fake, Limits())
    stream.receive(sound(0.1))
    assert stream.receive('{"config": {"sample_rate": 1, "words": false}}').close_code is None
    stream.receive(sound(0.4))
    assert "result" in stream.receive('{"eof": 1}').messages[0]


@pytest.mark.parametrize("message", [
    "garbage", "[]", "{}", '{"eof": 0}', '{"config": 3}', '{"config": {"sample_rate": "fast"}}',
    '{"config": {"sample_rate": "\\ud800"}}', '{"\\ud800": 1}', '{"config": {"model": "\\ud800"}}',
    '{"config": {"phrase_list": "one"}}', '{"config": {"phrase_list": [1]}}',
    '{"config": {"sample_rate": Infinity}}', '{"config": {"max_alternatives": null}}',
])  # fmt: skip
def test_invalid_messages_close_the_connection(message: str) -> None:
    reply = VoskStream(open_fake, Limits()).receive(message)
    assert (reply.messages, reply.close_code) == ((), 1008)


def test_a_stream_beyond_the_limit_gets_its_text() -> None:
    stream = VoskStream(open_fake, Limits(stream_seconds=1.0))
    stream.receive(sound(0.6))
    stream.receive('{"reset": 1}')
    assert stream.receive(sound(0.4)).close_code is None
    reply = stream.receive(sound(0.1))
    assert (reply.messages[0]["text"], reply.close_code) == ("one", 1008)


def test_errors_close_the_connection_without_a_message() -> None:
    assert VoskStream(open_fake, Limits()).end(StreamError("busy", "Full.")) == (
        (),
        1013,
        (),
        '{"code": "busy", "retry_after": 5}',
    )


@given(st.lists(st.integers(0, 2 * RATE), max_size=10))
def test_every_message_gets_one_reply_and_cutting_does_not_change_the_result(cuts: list[int]) -> None:
    data, edges = sound(1.0), sorted(cuts)
    stream = VoskStream(open_fake, Limits())
    for first, last in zip([0, *edges], [*edges, len(data)], strict=True):
        assert len(stream.receive(data[first:last]).messages) == 1
    (reply,) = stream.receive(json.dumps({"eof": 1})).messages
    assert reply["text"] == "one two three"
