"""How far a step may look, and in a live stream from where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headsync.attention import MECHANISMS
from headsync.attention import base as attention
from headsync.decoding.hypothesis import Hypothesis
from headsync.decoding.lookahead import LIMITS, gated_base, lookahead, unlimited, whole_utterance
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import NO_LIMIT

places = st.lists(st.integers(0, 100), max_size=8, unique=True).map(lambda frames: tuple(sorted(frames)))


def base(written: int, t: int, exhausted: int, *frames: int) -> int | None:
    """The base of a hypothesis with so many tokens, the last of which was decided at t, with spikes at these frames."""
    h = Hypothesis((1,) * written, halts=(0,) * (written - 1) + (t,) * (written > 0), exhausted=exhausted)
    return gated_base(h, CtcSpikes(frames, (1,) * len(frames)))


def test_a_step_needs_one_spike_more_than_tokens_are_written() -> None:
    assert base(0, 0, 0, 10, 20) == 10
    assert base(1, 12, 0, 10, 20) == 20
    assert base(2, 24, 0, 10, 20) is None
    assert base(0, 0, 0) is None


def test_the_base_is_t_where_that_is_later_than_the_spike() -> None:
    assert base(1, 50, 0, 10, 20) == 50
    assert base(1, 20, 0, 10, 20) == 20
    assert base(1, 19, 0, 10, 20) == 20


def test_silence_moves_the_base_forward() -> None:
    assert base(1, 12, 0, 10, 90) == 90


def test_exhausted_frames_are_not_searched_again() -> None:
    assert base(0, 0, 26, 10, 20, 40) == 40
    assert base(0, 0, 20, 10, 20, 40) == 20  # the frames below 20 are exhausted
    assert base(0, 0, 21, 10, 20, 40) == 40
    assert base(0, 0, 41, 10, 20, 40) is None


@given(places, st.integers(0, 9), st.integers(0, 100), st.integers(0, 120), st.integers(0, 100))
def test_later_spikes_never_change_a_base(
    frames: tuple[int, ...], written: int, t: int, exhausted: int, now: int
) -> None:
    early = base(written, t, exhausted, *(frame for frame in frames if frame < now))
    assert early in (None, base(written, t, exhausted, *frames))


@given(places, st.integers(0, 9), st.integers(0, 100), st.integers(0, 120), st.integers(1, 20))
def test_a_limit_lies_beyond_all_exhausted_frames(
    frames: tuple[int, ...], written: int, t: int, exhausted: int, m: int
) -> None:
    """So a hypothesis that is postponed comes to an end."""
    found = base(written, t, exhausted, *frames)
    assert found is None or (lookahead(found, m) or 0) > max(t if written else 0, exhausted)


def test_accumulation_has_m_frames_from_its_base() -> None:
    """Line 5 of Algorithm 1: j goes from 1 to t_{i-1} + M, so M frames are new; the first is that of the spike."""
    assert lookahead(50, 16) == 66


def test_attention_that_fires_by_itself_has_no_limit() -> None:
    assert unlimited(20, 16) == NO_LIMIT == attention.NO_LIMIT


def test_offline_attention_waits_for_the_end() -> None:
    assert whole_utterance(20, 16) is None


def test_there_is_a_limit_for_each_mechanism_and_no_other() -> None:
    assert set(LIMITS) == set(MECHANISMS)
