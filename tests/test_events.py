from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest

from headsync.events import Event, Final, Partial, Word

WORDS = (Word("seven", 0.12345, 0.5), Word("three", 0.5, 0.98765))
PARTIAL = Partial(3, "seven three", WORDS, 0.31239, 1.3)
FINAL = Final(3, "seven three", WORDS, 0.31239, 1.3, (12, 24), 0.123456)


def test_partial_to_dict_has_everything_and_times_in_milliseconds() -> None:
    assert PARTIAL.to_dict() == {
        "type": "partial",
        "utterance": 3,
        "text": "seven three",
        "words": [
            {"text": "seven", "start_seconds": 0.123, "end_seconds": 0.5},
            {"text": "three", "start_seconds": 0.5, "end_seconds": 0.988},
        ],
        "delay_seconds": 0.312,
        "time_seconds": 1.3,
    }


def test_final_to_dict_adds_halts_and_cost() -> None:
    rest = {name: value for name, value in PARTIAL.to_dict().items() if name != "type"}
    assert FINAL.to_dict() == {"type": "final", **rest, "halts": [12, 24], "cost_ratio": 0.1235}


@pytest.mark.parametrize("event", [PARTIAL, FINAL])
def test_an_event_is_json_and_cannot_be_changed(event: Event) -> None:
    assert json.loads(json.dumps(event.to_dict())) == event.to_dict()
    with pytest.raises(FrozenInstanceError):
        event.text = "another"  # type: ignore[misc]


def test_events_are_equal_by_value() -> None:
    assert Partial(3, "seven three", tuple(WORDS), 0.31239, 1.3) == PARTIAL
    assert Partial(4, "seven three", WORDS, 0.31239, 1.3) != PARTIAL
    assert len({FINAL, FINAL, PARTIAL}) == 2
