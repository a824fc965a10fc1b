from __future__ import annotations

import numpy as np
import pytest

from headsync.evaluation.latency import Delays, TimedEvents, TimedWord, laal, measure_delays, percentiles, word_delays
from headsync.events import Event, Final, Partial, Word


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
    assert percentiles(delays) == pytest.approx((101, 0.5, 0.5, 0.9, 0.95, 0.99))
    assert percentiles([]) is None


# --- delays against reference word times ---

SPOKEN = [TimedWord("One,", 0.1, 0.4), TimedWord("two.", 0.6, 0.9)]


def measured(events: list[Event], wall: list[float] | None = None, spoken: list[TimedWord] | None = SPOKEN) -> Delays:
    return measure_delays(TimedEvents(events, 2.0, wall or []), spoken, 2)


def test_delays_of_a_word_that_is_taken_back_once() -> None:
    events: list[Event] = [partial("one", 0.7), partial("nine", 0.8), partial("one two", 1.4), final("one two", 2.0)]
    delays = measured(events)
    assert delays.user_perceived == pytest.approx((1.4 - 0.4, 1.4 - 0.9))
    assert delays.first_display == pytest.approx((0.7 - 0.4, 1.4 - 0.9))
    assert delays.first_token == pytest.approx((0.7 - 0.1,))
    assert delays.finalisation == pytest.approx((2.0 - 0.9,))


def test_computing_time_is_added_to_the_real_time_of_an_event() -> None:
    events: list[Event] = [partial("one", 0.7), final("one two", 2.0)]
    delays = measured(events, [0.75, 2.3])
    assert delays.user_perceived == pytest.approx((0.3, 1.1))
    assert delays.user_perceived_computing == pytest.approx((0.35, 1.4))


def test_wrong_words_have_no_delay_against_reference_times() -> None:
    delays = measured([final("one ten", 1.5)])
    assert delays.user_perceived == pytest.approx((1.1,))
    assert delays.finalisation == ()  # the last word is not a spoken word


def test_a_recording_without_reference_times_has_no_delay_but_laal() -> None:
    """Its own word times are not mixed with the reference times of other recordings."""
    delays = measured([partial("one", 0.7), final("one two", 2.0)], spoken=[])
    assert delays == Delays(laal=delays.laal)
    assert delays.laal == pytest.approx((0.85,))  # 0.7 s, and 2.0 s after an ideal word at 1.0 s


def test_without_reference_times_the_own_word_ends_are_used() -> None:
    delays = measured([partial("one", 0.7), final("one two", 2.0)], spoken=None)
    assert delays.user_perceived == pytest.approx((0.2, 1.0))
    assert delays.first_token == pytest.approx((0.7,))
    assert delays.finalisation == pytest.approx((1.0,))


def test_delays_add_up() -> None:
    one = measured([final("one two", 2.0)])
    assert (one + one).user_perceived == one.user_perceived * 2
    summary = (one + one).summary()["finalisation"]
    assert summary is not None
    assert (summary.number, summary.mean) == pytest.approx((2, 1.1))
    assert Delays().summary()["laal"] is None


def test_laal_by_hand() -> None:
    """Two words in 2 s: an ideal emits them at 0 and 1 s."""
    assert laal([0.5, 1.5], 2, 2.0) == pytest.approx(0.5)
    # Only words up to the first one emitted at the end of the audio count.
    assert laal([0.5, 2.0, 2.0, 2.0], 4, 2.0) == pytest.approx(((0.5 - 0.0) + (2.0 - 0.5)) / 2)
    # A hypothesis that is too long is compared with its own length, one too short with that of the reference.
    assert laal([0.5, 1.0, 1.5, 1.9], 2, 2.0) == pytest.approx((0.5 + 0.5 + 0.5 + 0.4) / 4)
    assert laal([1.0], 4, 2.0) == pytest.approx(1.0)
    assert laal([], 4, 2.0) is None
