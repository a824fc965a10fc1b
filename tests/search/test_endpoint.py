"""Where utterances begin and end, by CTC evidence alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headsync.config import DecodingConfig
from headsync.search import endpoint
from headsync.search.evidence import Evidence

CONFIG = DecodingConfig(trailing_seconds=1.2, longest_seconds=4.0)


def heard(frames: int, last: int) -> Evidence:
    """The last frame that spoke was `last`."""
    return Evidence(spikes=(3,), tokens=(1,), last=last, frames=frames, clear=True)


def test_silence_is_idle_and_never_ends() -> None:
    for frames in (0, 1, 30, 100, 10_000):
        silence = Evidence(frames=frames)
        assert endpoint.idle(silence)
        assert not endpoint.ended(silence, CONFIG)
    assert not endpoint.idle(heard(4, 3))
    assert endpoint.idle(heard(4, 3)._replace(clear=False))
    assert not endpoint.ended(heard(10_000, 3)._replace(clear=False), CONFIG)


@pytest.mark.parametrize(("frames", "last", "ends"), [
    (34, 3, "pause"), (33, 3, None),         # 30 frames of silence after frame 3
    (90, 60, None), (91, 60, "pause"),
    (99, 90, None), (100, 94, "length"),     # after the longest, 5 frames of silence are enough
    (100, 95, None), (101, 95, "length"),
    (199, 198, None), (200, 199, "length"),  # after twice as long, none are needed
])  # fmt: skip
def test_an_utterance_ends(frames: int, last: int, ends: str | None) -> None:
    assert endpoint.ended(heard(frames, last), CONFIG) == ends


@pytest.mark.parametrize(("frames", "last", "own"), [
    (34, 3, 19),     # 15 of 30 frames of silence
    (100, 94, 98),   # 2 of 5
    (200, 199, 200),
])  # fmt: skip
def test_the_silence_at_the_end_is_shared_out(frames: int, last: int, own: int) -> None:
    assert endpoint.belong(heard(frames, last), CONFIG) == own


def test_the_next_utterance_takes_no_more_silence_than_its_lead() -> None:
    assert endpoint.belong(heard(34, 3), replace(CONFIG, lead_seconds=0.2)) == 34 - 5
    assert endpoint.belong(heard(34, 3), replace(CONFIG, lead_seconds=0.0)) == 34
