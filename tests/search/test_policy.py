"""Policies: when a step may be taken and how far it may look."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headsync.attention import MECHANISMS
from headsync.attention import base as attention
from headsync.config import DecoderConfig, DecodingConfig
from headsync.engine import NO_LIMIT
from headsync.search.evidence import Evidence
from headsync.search.policy import (
    POLICIES,
    Policy,
    frames_ahead,
    lookahead,
    trigger,
    unlimited,
    whole_blocks,
    whole_utterance,
)

spikes = st.lists(st.integers(0, 100), max_size=8, unique=True).map(lambda places: tuple(sorted(places)))


def said(*places: int) -> Evidence:
    return Evidence(spikes=places, tokens=(1,) * len(places), frames=200)


def test_a_step_needs_one_token_of_evidence_more_than_were_written() -> None:
    evidence = said(10, 20)
    assert lookahead(0, 0, 0, evidence, 16) == 26
    assert lookahead(1, 12, 0, evidence, 16) == 36
    assert lookahead(2, 24, 0, evidence, 16) is None
    assert lookahead(0, 0, 0, said(), 16) is None


def test_lookahead_counts_from_t_where_that_is_further_on() -> None:
    assert lookahead(1, 50, 0, said(10, 20), 16) == 66  # t_{i-1} + M of Algorithm 1
    assert lookahead(1, 20, 0, said(10, 20), 16) == 36
    assert lookahead(1, 19, 0, said(10, 20), 16) == 36


def test_silence_moves_the_base_forward() -> None:
    assert lookahead(1, 12, 0, said(10, 90), 16) == 106


def test_what_was_searched_in_vain_is_not_searched_again() -> None:
    evidence = said(10, 20, 40)
    assert lookahead(0, 0, 26, evidence, 16) == 56  # 10 and 20 lie before 26
    assert lookahead(0, 0, 20, evidence, 16) == 36  # up to 20, exclusive, there was nothing
    assert lookahead(0, 0, 21, evidence, 16) == 56
    assert lookahead(0, 0, 41, evidence, 16) is None


@pytest.mark.parametrize("policy", [lookahead, unlimited, trigger, whole_utterance])
@given(spikes, st.integers(0, 9), st.integers(0, 100), st.integers(0, 120), st.integers(1, 20), st.integers(0, 100))
def test_later_evidence_never_changes_a_limit(
    policy: Policy, places: tuple[int, ...], written: int, t: int, searched: int, m: int, now: int
) -> None:
    early = policy(written, t, searched, said(*(place for place in places if place < now)), m)
    whole = policy(written, t, searched, said(*places), m)
    assert early in (None, whole)


@pytest.mark.parametrize("policy", [lookahead, unlimited, trigger, whole_blocks])
@given(spikes, st.integers(0, 9), st.integers(0, 100), st.integers(0, 120), st.integers(1, 20))
def test_all_that_do_not_wait_for_the_end_wait_for_the_same_evidence(
    policy: Policy, places: tuple[int, ...], written: int, t: int, searched: int, m: int
) -> None:
    spike = next((place for place in places[written:] if place >= searched), None)
    assert (policy(written, t, searched, said(*places), m) is None) == (spike is None)


def test_attention_that_fires_by_itself_has_no_limit() -> None:
    assert unlimited(1, 12, 0, said(10, 20), 16) == NO_LIMIT
    assert unlimited(2, 12, 0, said(10, 20), 16) is None


def test_triggered_attention_sees_the_spike_and_what_it_looks_ahead() -> None:
    assert trigger(1, 50, 0, said(10, 20), 8) == 29  # frames 0 to 28, wherever the last step has looked
    assert trigger(0, 0, 0, said(10, 20), 0) == 11


def test_whole_blocks_are_all_that_has_arrived() -> None:
    assert whole_blocks(1, 50, 0, said(10, 20), 16) == 200


def test_how_far_ahead_a_model_looks() -> None:
    decoding = DecodingConfig(lookahead_frames=5)
    assert frames_ahead(DecoderConfig(attention="hs-dacs", trigger_frames=3), decoding) == 5
    assert frames_ahead(DecoderConfig(attention="triggered", trigger_frames=3), decoding) == 3


@given(spikes, st.integers(0, 9), st.integers(0, 100), st.integers(0, 120), st.integers(1, 20))
def test_a_limit_lies_beyond_all_that_was_searched(
    places: tuple[int, ...], written: int, t: int, searched: int, m: int
) -> None:
    """So a hypothesis that is held comes to an end."""
    limit = lookahead(written, t, searched, said(*places), m)
    assert limit is None or limit > max(t, searched)


def test_offline_attention_has_no_limit() -> None:
    assert whole_utterance(0, 0, 0, said(), 16) is None  # waits for the end, where a step without evidence sees all
    assert NO_LIMIT == attention.NO_LIMIT


def test_there_is_a_policy_for_each_mechanism_and_no_other() -> None:
    assert set(POLICIES) == set(MECHANISMS)
