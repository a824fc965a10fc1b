"""Stability measures against cases computed by hand."""

from __future__ import annotations

import pytest

from headsync.evaluation.latency import TimedEvents
from headsync.evaluation.stability import Stability, measure_stability
from headsync.events import Event, Final, Partial, Word


def words(text: str) -> tuple[Word, ...]:
    return tuple(Word(word, 0.0, 0.1) for word in text.split())


def shown(*texts: str, utterance: int = 0) -> list[Event]:
    """Partials of these texts; the last one is the Final."""
    events: list[Event] = [Partial(utterance, text, words(text), 0.0, 1.0) for text in texts[:-1]]
    return [*events, Final(utterance, texts[-1], words(texts[-1]), 0.0, 1.0, (), 0.5)]


@pytest.mark.parametrize(
    ("texts", "erased", "displayed", "unstable"),
    [
        (["one", "one two", "one two"], 0, 2, 0),
        (["nine", "one", "one two"], 1, 3, 1),  # nine
        (["a b c", "a d", "a d e"], 2, 5, 2),  # b and c are erased together
        (["one two", "one", "one two"], 1, 2, 0),  # two comes back: erased once, but stable
        (["one two"], 0, 2, 0),  # nothing displayed before the Final
        (["one", ""], 1, 1, 1),
    ],
)
def test_erased_and_unstable_words(texts: list[str], erased: int, displayed: int, unstable: int) -> None:
    counts = measure_stability(TimedEvents(shown(*texts), 2.0))
    assert counts == Stability(len(texts[-1].split()), erased, displayed, unstable)


def test_an_utterance_whose_text_was_removed_before_its_end_has_no_final() -> None:
    """Text that appears in noise and disappears is erased, although no Final reports it."""
    texts = (("a b", 0.5), ("", 1.0))
    events: list[Event] = [Partial(0, text, words(text), 0.0, seconds) for text, seconds in texts]
    counts = measure_stability(TimedEvents([*events, *shown("one", "one", utterance=1)], 2.0))
    assert counts == Stability(final=1, erased=2, displayed=3, unstable=2)


def test_ratios_are_pooled_over_utterances() -> None:
    events = shown("nine", "one", "one two") + shown("a b", "a", utterance=1)
    counts = measure_stability(TimedEvents(events, 2.0))
    assert counts.normalised_erasure == pytest.approx(2 / 3)  # nine and b; one two a
    assert counts.unstable_share == pytest.approx(2 / 5)
    assert Stability().normalised_erasure is None
    assert Stability().unstable_share is None
