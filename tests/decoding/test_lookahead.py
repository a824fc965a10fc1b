"""Look-ahead limits, and their base in a live stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headsync.attention import MECHANISMS
from headsync.attention import base as attention
from headsync.decoding.hypothesis import Hypothesis
from headsync.decoding.lookahead import LIMITS, gated_limit, gated_spike, lookahead, unlimited, whole_utterance
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import NO_LIMIT

places = st.lists(st.integers(0, 100), max_size=8, unique=True).map(lambda frames: tuple(sorted(frames)))


def limit(written: int, t: int, exhausted: int, *frames: int, m: int = 16) -> int | None:
    """The limit of a hypothesis with this many tokens, the last decided at t, with spikes at these frames."""
    h = Hypothesis((1,) * written, halts=(0,) * (written - 1) + (t,) * (written > 0), exhausted=exhausted)
    spike = gated_spike(h, CtcSpikes(frames, (1,) * len(frames)))
    return None if spike is None else gated_limit(h, spike, lookahead, m)


def test_a_step_needs_one_spike_more_than_tokens_are_written() -> None:
    assert limit(0, 0, 0, 10, 20) == 26
    assert limit(1, 12, 0, 10, 20) == 36
    assert limit(2, 24, 0, 10, 20) is None
    assert limit(0, 0, 0) is None


def test_a_limit_counts_from_the_spike_and_not_from_the_last_halt() -> None:
    assert limit(1, 15, 0, 10, 20) == 36
    assert limit(1, 24, 0, 10, 20) == 36
    assert limit(1, 24, 0, 10, 20, m=2) == 24  # t never falls


def test_a_spike_long_before_the_last_halt_belongs_to_a_written_token() -> None:
    """CTC has written one token more than the decoder; the step waits for a spike with new frames."""
    assert limit(1, 24, 0, 10, 20, 40) == 36
    assert limit(1, 25, 0, 10, 20, 40) == 56
    assert limit(1, 25, 0, 10, 20) is None


def test_punctuation_needs_no_spike_and_its_spikes_do_not_count() -> None:
    """Token 2 is a comma."""
    spikes = CtcSpikes((10, 20, 30), (1, 2, 3))
    assert gated_spike(Hypothesis((1,)), spikes) == 20
    assert gated_spike(Hypothesis((1,)), spikes, {2}) == 30
    assert gated_spike(Hypothesis((1, 2)), spikes, {2}) == 30
    assert gated_spike(Hypothesis((1, 2, 3)), spikes, {2}) is None
    assert gated_spike(Hypothesis(), CtcSpikes((10,), (2,)), {2}) is None


def test_silence_moves_the_limit_forward() -> None:
    assert limit(1, 12, 0, 10, 90) == 106


def test_exhausted_frames_are_not_searched_again() -> None:
    assert limit(0, 0, 26, 10, 20, 40) == 56
    assert limit(0, 0, 20, 10, 20, 40) == 36  # the frames below 20 are exhausted
    assert limit(0, 0, 21, 10, 20, 40) == 56
    assert limit(0, 0, 41, 10, 20, 40) is None


@given(places, st.integers(0, 9), st.integers(0, 100), st.integers(0, 120), st.integers(0, 100))
def test_later_spikes_never_change_a_limit(
    frames: tuple[int, ...], written: int, t: int, exhausted: int, now: int
) -> None:
    early = limit(written, t, exhausted, *(frame for frame in frames if frame < now))
    assert early in (None, limit(written, t, exhausted, *frames))


@given(places, st.integers(0, 9), st.integers(0, 100), st.integers(0, 120), st.integers(1, 20))
def test_a_limit_lies_beyond_all_exhausted_frames(
    frames: tuple[int, ...], written: int, t: int, exhausted: int, m: int
) -> None:
    """A postponed hypothesis therefore terminates."""
    found = limit(written, t, exhausted, *frames, m=m)
    assert found is None or (found > exhausted and found >= (t if written else 0))


def test_accumulation_has_m_frames_from_its_base() -> None:
    """Line 5 of Algorithm 1: j goes from 1 to t_{i-1} + M, so M frames are new."""
    assert lookahead(50, 16) == 66


def test_attention_that_fires_by_itself_has_no_limit() -> None:
    assert unlimited(20, 16) == NO_LIMIT == attention.NO_LIMIT


def test_offline_attention_waits_for_the_end() -> None:
    assert whole_utterance(20, 16) is None


def test_there_is_a_limit_for_each_mechanism_and_no_other() -> None:
    assert set(LIMITS) == set(MECHANISMS)
