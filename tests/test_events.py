from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest

from headsync.events import Alternative, Attention, Endpoint, Event, Final, Partial, Word

WORDS = (Word("seven", 0.12345, 0.5), Word("three", 0.5, 0.98765, 0.87654))
PARTIAL = Partial(3, "seven three", WORDS, 0.31239, 1.3, 1)
FINAL = Final(3, "seven three", WORDS, 0.31239, 1.3, (12, 24), 0.123456, (Alternative("eleven", 2.34567),))
ENDPOINT = Endpoint(3, "pause", 1.30049)
ATTENTION = Attention(3, 0, "seven", 0.08, 0.04, ((0.25, 0.5), (0.0, 0.125)), (0.16, 0.12), 1.30049)


def test_partial_to_dict_has_everything_and_times_in_milliseconds() -> None:
    assert PARTIAL.to_dict() == {
        "type": "partial",
        "utterance": 3,
        "text": "seven three",
        "words": [
            {"text": "seven", "start_seconds": 0.123, "end_seconds": 0.5, "confidence": 1.0},
            {"text": "three", "start_seconds": 0.5, "end_seconds": 0.988, "confidence": 0.877},
        ],
        "delay_seconds": 0.312,
        "time_seconds": 1.3,
        "committed": "seven",
        "tentative": "three",
    }


def test_final_to_dict_adds_halts_and_cost() -> None:
    rest = {name: value for name, value in PARTIAL.to_dict().items() if name not in ("type", "committed", "tentative")}
    others = [{"text": "eleven", "behind": 2.346}]
    assert FINAL.to_dict() == {"type": "final", **rest, "halts": [12, 24], "cost_ratio": 0.1235, "alternatives": others}


def test_an_endpoint_has_utterance_reason_and_time() -> None:
    assert ENDPOINT.to_dict() == {"type": "endpoint", "utterance": 3, "reason": "pause", "time_seconds": 1.3}


def test_attention_has_weights_and_halts_of_each_head() -> None:
    assert ATTENTION.to_dict() == {
        "type": "attention",
        "utterance": 3,
        "number": 0,
        "token": "seven",
        "start_seconds": 0.08,
        "frame_seconds": 0.04,
        "weights": [[0.25, 0.5], [0.0, 0.125]],
        "halts_seconds": [0.16, 0.12],
        "time_seconds": 1.3,
    }


@pytest.mark.parametrize("event", [PARTIAL, FINAL, ENDPOINT, ATTENTION])
def test_an_event_is_json_and_cannot_be_changed(event: Event) -> None:
    assert json.loads(json.dumps(event.to_dict())) == event.to_dict()
    with pytest.raises(FrozenInstanceError):
        event.utterance = 4  # type: ignore[misc]


def test_events_are_equal_by_value() -> None:
    assert Partial(3, "seven three", tuple(WORDS), 0.31239, 1.3, 1) == PARTIAL
    assert Partial(4, "seven three", WORDS, 0.31239, 1.3, 1) != PARTIAL
    assert len({FINAL, FINAL, PARTIAL}) == 2
