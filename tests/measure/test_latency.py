from __future__ import annotations

import numpy as np
import pytest

from headsync.events import Event, Final, Partial, Word
from headsync.measure.latency import percentiles, word_delays


def words(text: str) -> tuple[Word, ...]:
    """Every word half a second long, one after the other."""
    return tuple(Word(word, i * 0.5, i * 0.5 + 0.5) for i, word in enumerate(text.split()))


def partial(text: str, time_seconds: float, utterance: int = 0) -> Partial:
    return Partial(utterance, text, words(text), 0.0, time_seconds)


def final(text: str, time_seconds: float, utterance: int = 0) -> Final:
    return Final(utterance, text, words(text), 0.0, time_seconds, (), 0.5)


def test_a_word_counts_from_its_first_event() -> None:
    events: list[Event] = [partial("one", 0.7), partial("one two", 1.4), final("one two", 2.0)]
    assert word_delays(events) == pytest.approx([0.7 - 0.5, 1.4 - 1.0])


def test_a_word_that_is_taken_back_counts_from_when_it_stays() -> None:
    events: list[Event] = [partial("one", 0.7), partial("nine", 0.8), partial("one two", 1.4), final("one two", 2.0)]
    assert word_delays(events) == pytest.approx([1.4 - 0.5, 1.4 - 1.0])


def test_a_word_that_only_the_final_has() -> None:
    events: list[Event] = [partial("one", 0.7), final("one two", 2.0)]
    assert word_delays(events) == pytest.approx([0.7 - 0.5, 2.0 - 1.0])


def test_a_word_at_another_position_is_another_word() -> None:
    events: list[Event] = [partial("two", 0.7), partial("one two", 1.5), final("one two", 2.0)]
    assert word_delays(events) == pytest.approx([1.5 - 0.5, 1.5 - 1.0])


def test_a_word_that_grows_letter_by_letter_counts_when_whole() -> None:
    events: list[Event] = [partial("se", 0.3), partial("seven", 0.6), final("seven", 0.9)]
    assert word_delays(events) == pytest.approx([0.1])


def test_utterances_are_kept_apart() -> None:
    events: list[Event] = [partial("one", 0.6), final("one", 1.0), partial("one", 1.9, 1), final("one", 2.0, 1)]
    assert word_delays(events) == pytest.approx([0.1, 1.4])


def test_an_utterance_that_has_not_ended_has_no_final_words() -> None:
    assert word_delays([partial("one", 0.7)]) == []


def test_percentiles() -> None:
    delays = list(np.linspace(0.0, 1.0, 101))
    assert percentiles(delays) == pytest.approx((0.5, 0.95))
    assert percentiles([]) is None
