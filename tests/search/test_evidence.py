"""Evidence: the greedy CTC reading, frame by frame."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headsync.config import DecodingConfig
from headsync.search.evidence import PAIR_FRAMES, Evidence

labels = st.lists(st.integers(0, 3), max_size=30)


def scores(label: int, classes: int = 5) -> np.ndarray:
    """CTC is sure of a label."""
    log_ctc = np.full(classes, -9.0, np.float32)
    log_ctc[label] = -0.01
    return log_ctc


def read(sequence: list[int], start: Evidence | None = None, least: float = 0.5) -> Evidence:
    evidence = start or Evidence()
    for label in sequence:
        evidence = evidence.add(scores(label), DecodingConfig(evidence=least))
    return evidence


@given(labels)
def test_spikes_are_where_ctc_begins_a_token(sequence: list[int]) -> None:
    evidence = read(sequence)
    begins = [n for n, label in enumerate(sequence) if label and (n == 0 or label != sequence[n - 1])]
    assert evidence.spikes == tuple(begins)
    assert evidence.tokens == tuple(sequence[n] for n in begins)
    assert evidence.frames == len(sequence)
    assert evidence.label == (sequence[-1] if sequence else 0)
    assert evidence.last == max((n for n, label in enumerate(sequence) if label), default=-1)


def test_a_held_token_counts_once_and_a_blank_parts_two() -> None:
    assert read([1, 1, 1]).spikes == (0,)
    assert read([1, 0, 1]).spikes == (0, 2)
    assert read([1, 2, 2, 1]).tokens == (1, 2, 1)


@given(labels, st.data())
def test_evidence_does_not_depend_on_the_cutting(sequence: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(sequence)))
    assert read(sequence[cut:], read(sequence[:cut])) == read(sequence)


@given(labels, st.integers(0, 9), st.integers(0, 35))
def test_a_step_needs_a_spike_more_than_written_and_not_searched(
    sequence: list[int], written: int, searched: int
) -> None:
    evidence = read(sequence)
    expected = [spike for n, spike in enumerate(evidence.spikes) if n >= written and spike >= searched]
    assert evidence.after(written, searched) == (expected[0] if expected else None)


@given(st.integers(0, 10), labels, st.data())
def test_forgotten_silence_only_moves_the_reading(silence: int, sequence: list[int], data: st.DataObject) -> None:
    forgotten = data.draw(st.integers(0, silence))
    moved = read([0] * silence + sequence).forget(forgotten)
    assert moved == read([0] * (silence - forgotten) + sequence)
    assert read([1, 0], moved) == read([0] * (silence - forgotten) + [*sequence, 1, 0])


def test_all_tokens_together_speak_at_the_least_probability() -> None:
    """The probability of all that is not blank counts, not that of the best token; exactly the least is enough."""
    spread = np.log(np.array([0.5, 0.2, 0.2, 0.1]))
    assert Evidence().add(spread, DecodingConfig(evidence=0.4999)).spikes == (0,)
    assert Evidence().add(spread, DecodingConfig(evidence=0.5001)).spikes == ()
    half = np.log(np.array([0.5, 0.25, 0.25]))
    exact = -np.expm1(half[0])
    assert Evidence().add(half, DecodingConfig(evidence=float(exact))).spikes == (0,)
    assert Evidence().add(spread, DecodingConfig(evidence=0.4999)).tokens == (1,)


def test_a_blank_of_more_than_one_by_rounding_is_silence() -> None:
    assert Evidence().add(np.array([1e-7, -20.0, -20.0], np.float32), DecodingConfig()).spikes == ()


FAINT, CLEAR = 0.6, 0.9
MURMUR = DecodingConfig(onset=0.8, trailing_seconds=0.2, longest_seconds=0.8)  # 5 and 20 frames


def listen(sounds: list[float], start: Evidence | None = None, config: DecodingConfig = MURMUR) -> Evidence:
    """Every sound is a token of its own with that probability; none where it is less than a half."""
    evidence = start or Evidence()
    for sound in sounds:
        log_ctc_V = np.full(4, -9.0)
        log_ctc_V[0], log_ctc_V[1 + evidence.frames % 2] = np.log1p(-sound), np.log(sound + 1e-9)
        evidence = evidence.add(log_ctc_V, config)
    return evidence


def test_faint_tokens_count_once_a_clear_one_is_heard_before_a_pause() -> None:
    assert not listen([FAINT, 0, 0, FAINT]).clear
    assert listen([FAINT, 0, 0, 0, 0, CLEAR]).spikes == (0, 5)
    assert listen([FAINT, 0, 0, 0, 0, 0, CLEAR]).spikes == (6,)
    assert listen([FAINT, 0, 0, 0, FAINT, 0, 0, 0, CLEAR]).spikes == (0, 4, 8)
    assert listen([FAINT, 0, 0, CLEAR, 0, 0, 0, 0, 0, 0, 0, FAINT]).spikes == (0, 3, 11)
    murmured = listen([FAINT] * 40)
    assert not murmured.clear
    assert murmured.frames == 40
    assert murmured.spikes == tuple(range(19, 40))  # however long it lasts, only so much is kept


@given(st.lists(st.sampled_from([0.0, FAINT, CLEAR]), max_size=30), st.data())
def test_what_is_clear_does_not_depend_on_the_cutting(sounds: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(sounds)))
    assert listen(sounds).clear == (CLEAR in sounds)
    assert len(listen(sounds).spikes) == len(listen(sounds).tokens)
    assert listen(sounds[cut:], listen(sounds[:cut])) == listen(sounds)


PAIR = DecodingConfig(onset=0.8, onset_pair=0.55, evidence=0.4, trailing_seconds=1.2)  # 30 frames


def test_two_tokens_within_a_second_open_an_utterance_together() -> None:
    fainter = 0.45  # it counts once an utterance is open, and opens none
    for pause, opens in ((0, True), (24, True), (25, False), (40, False)):
        assert listen([FAINT, *[0.0] * pause, FAINT], config=PAIR).clear == opens
        assert not listen([FAINT, *[0.0] * pause, fainter], config=PAIR).clear
        assert not listen([FAINT, *[0.0] * pause, FAINT], config=replace(PAIR, onset_pair=1.0)).clear
    assert listen([fainter, 0, 0, FAINT, 0, fainter, 0, FAINT], config=PAIR).spikes == (0, 3, 5, 7)
    assert not listen([FAINT, *[0.0] * 8, FAINT], config=replace(PAIR, trailing_seconds=0.2)).clear  # a pause between


def test_one_token_that_lasts_is_no_pair() -> None:
    evidence = Evidence()
    for probability in (0.6, 0.7, 0.45, 0.6, 0.6):
        evidence = evidence.add(np.log([1 - probability, probability, 1e-9]), PAIR)
    assert evidence.spikes == (0,)
    assert not evidence.clear


@given(st.lists(st.sampled_from([0.0, 0.45, FAINT, CLEAR]), max_size=60), st.data())
def test_a_pair_is_the_same_for_every_cutting_and_after_forgetting(sounds: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(sounds)))
    heard = listen(sounds[:cut], config=PAIR)
    whole = listen(sounds, config=PAIR)
    assert listen(sounds[cut:], heard, PAIR) == whole
    forgotten = data.draw(st.integers(0, heard.spikes[0] if heard.spikes else heard.frames)) // 2 * 2  # same tokens
    assert listen(sounds[cut:], heard.forget(forgotten), PAIR).clear == whole.clear
    tokens = [place for place, sound in enumerate(sounds) if sound >= FAINT]
    pairs = any(0 < b - a <= PAIR_FRAMES for a, b in pairwise(tokens))
    assert whole.clear == (pairs or CLEAR in sounds)
