"""Evidence: the greedy CTC reading, frame by frame."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headsync.search.evidence import Evidence

labels = st.lists(st.integers(0, 3), max_size=30)


def scores(label: int, classes: int = 5) -> np.ndarray:
    """CTC is sure of a label."""
    log_ctc = np.full(classes, -9.0, np.float32)
    log_ctc[label] = -0.01
    return log_ctc


def read(sequence: list[int], start: Evidence | None = None, least: float = 0.5) -> Evidence:
    evidence = start or Evidence()
    for label in sequence:
        evidence = evidence.add(scores(label), least)
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
    assert Evidence().add(spread, 0.4999).spikes == (0,)
    assert Evidence().add(spread, 0.5001).spikes == ()
    half = np.log(np.array([0.5, 0.25, 0.25]))
    exact = -np.expm1(half[0])
    assert Evidence().add(half, float(exact)).spikes == (0,)
    assert Evidence().add(spread, 0.4999).tokens == (1,)


def test_a_blank_of_more_than_one_by_rounding_is_silence() -> None:
    assert Evidence().add(np.array([1e-7, -20.0, -20.0], np.float32), 0.5).spikes == ()
