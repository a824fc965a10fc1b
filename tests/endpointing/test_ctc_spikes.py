"""Spikes: counted from anywhere, cut anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headsync.endpointing.ctc_spikes import NO_SPIKES, CtcSpikes

places = st.lists(st.integers(0, 30), max_size=12, unique=True).map(sorted)


def spikes_at(frames: list[int]) -> CtcSpikes:
    spikes = NO_SPIKES
    for frame in frames:
        spikes = spikes.add(frame, frame + 100)
    return spikes


@given(places, st.integers(0, 14), st.integers(0, 35))
def test_the_next_spike_has_enough_before_it_and_is_not_too_early(frames: list[int], written: int, first: int) -> None:
    expected = [frame for n, frame in enumerate(frames) if n >= written and frame >= first]
    assert spikes_at(frames).next_after(written, first) == (expected[0] if expected else None)


@given(places, st.integers(0, 35))
def test_spikes_before_a_frame_keep_their_tokens(frames: list[int], end: int) -> None:
    assert spikes_at(frames).before(end) == spikes_at([frame for frame in frames if frame < end])


@given(places, st.integers(0, 14))
def test_the_first_spikes_can_be_left_out(frames: list[int], count: int) -> None:
    assert spikes_at(frames).without_first(count) == spikes_at(frames[count:])


@given(places, st.integers(0, 9))
def test_counting_from_another_frame_moves_all_spikes(frames: list[int], first: int) -> None:
    moved = spikes_at(frames).counted_from(first)
    assert moved.frames == tuple(frame - first for frame in frames)
    assert moved.tokens == tuple(frame + 100 for frame in frames)
