"""Where utterances begin and end, by CTC evidence alone."""

from __future__ import annotations

import pytest

from headsync.config import DecodingConfig
from headsync.search import endpoint
from headsync.search.evidence import Evidence

CONFIG = DecodingConfig(trailing_frames=30, longest_frames=100)


def heard(frames: int, last: int) -> Evidence:
    """The last frame that spoke was `last`."""
    return Evidence(spikes=(3,), tokens=(1,), last=last, frames=frames)


def test_silence_is_idle_and_never_ends() -> None:
    for frames in (0, 1, 30, 100, 10_000):
        silence = Evidence(frames=frames)
        assert endpoint.idle(silence)
        assert not endpoint.ended(silence, CONFIG)
    assert not endpoint.idle(heard(4, 3))


@pytest.mark.parametrize(("frames", "last", "ends"), [
    (34, 3, True), (33, 3, False),        # 30 frames of silence after frame 3
    (90, 60, False), (91, 60, True),
    (99, 90, False), (100, 94, True),     # after the longest, 5 frames of silence are enough
    (100, 95, False), (101, 95, True),
    (199, 198, False), (200, 199, True),  # after twice as long, none are needed
])  # fmt: skip
def test_an_utterance_ends(frames: int, last: int, ends: bool) -> None:
    assert endpoint.ended(heard(frames, last), CONFIG) is ends
