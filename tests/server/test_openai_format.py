"""The documents of the transcription API, from events alone."""

from __future__ import annotations

import json

import pytest

from headsync.events import Endpoint, Event, Final, Partial, Word
from headsync.server.openai_format import (
    SentText,
    Transcription,
    next_delta,
    plain_json,
    server_sent_event,
    verbose_json,
)


def words(text: str, start: float = 0.0) -> tuple[Word, ...]:
    return tuple(Word(word, start + i, start + i + 0.5, 0.5) for i, word in enumerate(text.split()))


def partial(text: str, committed: int) -> Partial:
    return Partial(0, text, words(text), 0.1, 1.0, committed)


def final(text: str, start: float = 0.0) -> Final:
    return Final(0, text, words(text, start), 0.1, 1.0, (), 0.5)


def test_pieces_hold_only_what_stays_and_join_to_the_text() -> None:
    events: list[Event] = [
        partial("one", 0), partial("one too", 1), partial("one two three", 2), final("one two tree"),
        Endpoint(0, "pause", 3.0), partial("four", 1), final("four"), final(""), final("five six"),
    ]  # fmt: skip
    sent, pieces = SentText(), []
    for event in events:
        piece, sent = next_delta(sent, event)
        pieces.append(piece)
    assert pieces == ["", "one", " two", " tree", "", " four", "", "", " five six"]
    assert sent.text == "one two tree four five six"


def test_the_plain_document() -> None:
    result = Transcription([final("one two"), final(""), final("three")], 3.2)
    assert plain_json(result) == {"text": "one two three", "usage": {"type": "duration", "seconds": 4}}


@pytest.mark.parametrize(("granularities", "keys"), [
    ([], {"segments"}),
    (["segment"], {"segments"}),
    (["word"], {"words"}),
    (["word", "segment"], {"words", "segments"}),
])  # fmt: skip
def test_the_long_document_has_the_times_asked_for(granularities: list, keys: set[str]) -> None:
    document = verbose_json(
        Transcription([final("one two"), final(""), final("three", 5.0)], 7.0), "english", granularities
    )
    assert (document["task"], document["language"], document["duration"]) == ("transcribe", "english", 7.0)
    assert document["text"] == "one two three"
    assert document.keys() & {"words", "segments"} == keys
    if "words" in keys:
        assert document["words"][-1] == {"word": "three", "start": 5.0, "end": 5.5}
    if "segments" in keys:
        first, second = document["segments"]
        assert (first["id"], first["start"], first["end"], first["text"]) == (0, 0.0, 1.5, "one two")
        assert (second["id"], second["start"]) == (1, 5.0)
        assert first["avg_logprob"] == pytest.approx(-0.6931)


def test_server_sent_events_are_lines_of_json() -> None:
    sent = server_sent_event({"type": "transcript.text.done", **plain_json(Transcription([final("fünf")], 1.0))})
    assert sent.startswith("data: ")
    assert sent.endswith("\n\n")
    assert "\n" not in sent[:-2]
    assert json.loads(sent.removeprefix("data: ")) == {
        "type": "transcript.text.done", "text": "fünf", "usage": {"type": "duration", "seconds": 1},
    }  # fmt: skip
