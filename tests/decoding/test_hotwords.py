"""Hotwords: the score of a text against a literal count of its phrases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.decoding.hotwords import Hotwords

SIZE = 6  # 0 is blank, 5 is <eos>
END, SPACE = SIZE - 1, 4
tokens = st.integers(1, 4)
texts = st.lists(tokens, max_size=10).map(tuple)
phrase = st.tuples(st.lists(tokens, min_size=1, max_size=4).map(tuple), st.floats(0.5, 4.0))
phrases = st.lists(phrase, max_size=5, unique_by=lambda wanted: wanted[0])


def earned(hotwords: Hotwords, text: tuple[int, ...]) -> list[float]:
    """The sum of all scores after each token of a text, and at its end."""
    node, total, sums = 0, 0.0, []
    for token in (*text, END):
        total += hotwords.scores([node])[0, token]
        sums.append(total)
        if token != END:
            node = hotwords.after(node, token)
    return sums


def worth(text: tuple[int, ...], wanted: list[tuple[tuple[int, ...], float]], marks: str) -> float:
    """Every occurrence of every phrase as whole words, found by looking at every place."""
    total = 0.0
    for phrase, boost in wanted:
        for first in range(len(text) - len(phrase) + 1):
            end = first + len(phrase)
            if text[first:end] == phrase and _begins(text, first, marks) and _ends(text, end, marks):
                total += boost
    return total


def _begins(text: tuple[int, ...], place: int, marks: str) -> bool:
    """Whether a word begins at a place; after spaces, at the tokens 1 and 2, or everywhere."""
    if marks == "space":
        return place == 0 or text[place - 1] == SPACE
    return marks == "words" or text[place] in (1, 2)


def _ends(text: tuple[int, ...], place: int, marks: str) -> bool:
    if place == len(text) or marks == "words":
        return True
    return text[place] == SPACE if marks == "space" else text[place] in (1, 2)


def test_a_text_earns_the_most_of_all_phrases_that_it_may_be_in() -> None:
    """After 1 2 the text may continue as 1 2 3 4, which has earned 0.5, or as 2 5 3 4, which has earned 3."""
    hotwords = Hotwords.build([((1, 2, 3, 4), 1.0), ((2, 3), 6.0)], SIZE)
    assert earned(hotwords, (1, 2)) == pytest.approx([0.25, 3.0, 0.0])
    assert earned(hotwords, (1, 2, 3)) == pytest.approx([0.25, 3.0, 6.0, 6.0])


@settings(max_examples=60, deadline=None)
@given(phrases, texts)
def test_phrases_of_words(wanted: list[tuple[tuple[int, ...], float]], text: tuple[int, ...]) -> None:
    hotwords = Hotwords.build(wanted, SIZE)
    assert earned(hotwords, text)[-1] == pytest.approx(worth(text, wanted, "words"))


@settings(max_examples=60, deadline=None)
@given(phrases, texts)
def test_phrases_of_characters(wanted: list[tuple[tuple[int, ...], float]], text: tuple[int, ...]) -> None:
    """Words are separated by spaces; a phrase has no spaces at its ends and no double spaces."""
    wanted = [(phrase, boost) for phrase, boost in wanted if SPACE not in (phrase[0], phrase[-1])]
    wanted = [(p, boost) for p, boost in wanted if (SPACE, SPACE) not in itertools.pairwise(p)]
    hotwords = Hotwords.build(wanted, SIZE, space=SPACE)
    assert earned(hotwords, text)[-1] == pytest.approx(worth(text, wanted, "space"))


@settings(max_examples=60, deadline=None)
@given(phrases, texts)
def test_phrases_of_pieces(wanted: list[tuple[tuple[int, ...], float]], text: tuple[int, ...]) -> None:
    """The tokens 1 and 2 begin a word."""
    wanted = [(phrase, boost) for phrase, boost in wanted if phrase[0] in (1, 2)]
    hotwords = Hotwords.build(wanted, SIZE, first=(1, 2))
    assert earned(hotwords, text)[-1] == pytest.approx(worth(text, wanted, "pieces"))


def test_a_boost_is_earned_by_token_and_removed_again() -> None:
    hotwords = Hotwords.build([((1, 2, 3), 3.0)], SIZE)
    assert earned(hotwords, (1, 2, 3, 4)) == pytest.approx([1, 2, 3, 3, 3])
    assert earned(hotwords, (1, 2, 4)) == pytest.approx([1, 2, 0, 0])
    assert earned(hotwords, (1, 1, 2)) == pytest.approx([1, 1, 2, 0])  # begun again at once; at the end all is over


def test_boosts_are_lent_until_a_phrase_is_complete() -> None:
    hotwords = Hotwords.build([((1, 2, 3), 3.0), ((1, 2), 1.5)], SIZE)
    begun = hotwords.after(0, 1)
    np.testing.assert_allclose(hotwords.lent([0]), [[0, 1, 0, 0, 0, 0]])
    np.testing.assert_allclose(hotwords.lent([begun]), [[0, 1, 0.5, 0, 0, 0]])  # 2 has earned 2, and keeps 1.5
    np.testing.assert_allclose(hotwords.lent([hotwords.after(begun, 2)]), [[0, 1, 0, 0, 0, 0]])


def test_a_phrase_that_is_named_twice_counts_once() -> None:
    twice = Hotwords.build([((1, 2), 2.0), ((1, 2), 1.0)], SIZE)
    assert earned(twice, (1, 2))[-1] == pytest.approx(1.0)


def test_within_a_word_of_characters_no_phrase_begins_or_ends() -> None:
    cat, category, concat = (1, 2, 3), (1, 2, 3, 1), (3, 1, 2, 3)
    hotwords = Hotwords.build([(cat, 3.0)], SIZE, space=SPACE)
    assert earned(hotwords, cat) == pytest.approx([1, 2, 3, 3])
    assert earned(hotwords, (*category, SPACE, *cat)) == pytest.approx([1, 2, 3, 0, 0, 1, 2, 3, 3])
    assert earned(hotwords, (*concat, SPACE)) == pytest.approx([0] * 6)
    beside = Hotwords.build([(cat, 3.0), ((*concat[:3], 2), 4.0)], SIZE, space=SPACE)  # another phrase leads into it
    assert earned(beside, concat) == pytest.approx([1, 2, 3, 0, 0])


def test_a_phrase_within_another_counts_too() -> None:
    hotwords = Hotwords.build([((1, 2), 1.0), ((1, 2, 3), 6.0), ((3, 4), 2.0)], SIZE)
    assert earned(hotwords, (1, 2, 3, 4))[-1] == pytest.approx(9.0)
    assert earned(hotwords, (1, 2))[-1] == pytest.approx(1.0)


def test_rows_are_scored_side_by_side() -> None:
    hotwords = Hotwords.build([((1, 2), 2.0), ((3,), 1.0)], SIZE)
    begun = hotwords.after(0, 1)
    together = hotwords.scores([0, begun, 0])
    assert together.shape == (3, SIZE)
    np.testing.assert_array_equal(together[0], together[2])
    np.testing.assert_allclose(together[0], [0, 1, 0, 1, 0, 0])
    np.testing.assert_allclose(together[1], [-1, 0, 1, 0, -1, -1])
