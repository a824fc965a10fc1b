"""Times of words from CTC spikes."""

from __future__ import annotations

import itertools

import numpy as np

from fakes_engine import nothing_heard
from headsync.config import DecodingConfig
from headsync.decoding.hypothesis import Hypothesis, SpeechFrames
from headsync.decoding.word_times import timed_words, token_frames
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.frontend.frame_rate import LOG_MEL
from headsync.text.vocabulary import Vocabulary

WORDS = Vocabulary("words", ("no", "yes"))  # 1, 2
LETTERS = Vocabulary("characters", ("<space>", "n", "o"))  # 1, 2, 3
CONFIG = DecodingConfig(token_frames=5)


def spikes_at(*spikes: tuple[int, int]) -> CtcSpikes:
    return CtcSpikes(tuple(frame for frame, _ in spikes), tuple(token for _, token in spikes))


def evidence(*spikes: tuple[int, int], frames: int = 100) -> SpeechFrames:
    return SpeechFrames(nothing_heard(frames), np.zeros((frames, 3), np.float32), spikes_at(*spikes))


def times(
    vocabulary: Vocabulary, hypothesis: Hypothesis, heard: SpeechFrames, first: int = 0
) -> list[tuple[str, float, float]]:
    words = timed_words(vocabulary.words(hypothesis.tokens), hypothesis, heard, first, CONFIG, LOG_MEL)
    return [(word.text, word.start_seconds, word.end_seconds) for word in words]


def test_a_word_lasts_from_before_its_spike_to_a_while_after() -> None:
    said = Hypothesis((1, 2), halts=(20, 50))
    assert times(WORDS, said, evidence((10, 1), (30, 2))) == [("no", 0.36, 0.6), ("yes", 1.16, 1.4)]


def test_a_word_ends_where_the_next_begins() -> None:
    said = Hypothesis((1, 2), halts=(20, 20))
    assert times(WORDS, said, evidence((10, 1), (13, 2))) == [("no", 0.36, 0.48), ("yes", 0.48, 0.72)]


def test_no_word_ends_after_the_speech() -> None:
    assert times(WORDS, Hypothesis((1,), halts=(12,)), evidence((10, 1), frames=12)) == [("no", 0.36, 0.48)]


def test_times_count_from_the_start_of_the_stream() -> None:
    assert times(WORDS, Hypothesis((1,), halts=(20,)), evidence((10, 1)), first=1000) == [("no", 40.36, 40.6)]


def test_a_word_of_letters_lasts_from_its_first_to_its_last() -> None:
    said = Hypothesis((2, 3, 1, 2, 3), halts=(9, 9, 20, 60, 60))
    heard = evidence((5, 2), (8, 3), (11, 1), (40, 2), (44, 3))
    assert times(LETTERS, said, heard) == [("no", 0.16, 0.52), ("no", 1.56, 1.96)]


def test_a_token_without_a_spike_stands_where_it_was_decided() -> None:
    assert token_frames(Hypothesis((1, 2), halts=(15, 25)), spikes_at((10, 1))) == [10, 24]


def test_spikes_of_other_tokens_and_of_the_future_are_passed_over() -> None:
    assert token_frames(Hypothesis((2, 2), halts=(20, 40)), spikes_at((5, 1), (12, 2), (35, 2), (50, 2))) == [12, 35]


def test_words_never_overlap() -> None:
    words = times(WORDS, Hypothesis((1, 1, 1), halts=(3, 3, 3)), evidence((1, 1), (2, 1)))
    assert all(end <= start for (_, _, end), (_, start, _) in itertools.pairwise(words))
    assert all(start < end for _, start, end in words)
