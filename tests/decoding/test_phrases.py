"""The phrase list against a literal reading of texts: which tokens may follow, what is charged, what is printed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.decoding.build import build_phrases
from headsync.decoding.phrase_text import PhraseText
from headsync.decoding.phrases import START, UNFINISHED, UNKNOWN, Phrases
from headsync.errors import ConfigError
from headsync.text.vocabulary import Vocabulary
from reference import phrases as literal

CHARACTERS = Vocabulary("characters", ("<space>", "a", "b", "B", ",", "<cough>"))
PIECES = Vocabulary("bpe", ("▁", "a", "b", "▁a", "▁aB", "ab,", "-", "▁-"))
NO_MARK = Vocabulary("bpe", ("▁a", "bA", "▁ab", "▁b", "b", "'"))  # an "a" within a word needs a "b" before it
WORDS = Vocabulary("words", ("a", "B.", "ab", "--", "<cough>", "<unk>"))
VOCABULARIES = (CHARACTERS, PIECES, NO_MARK, WORDS)
Grammar = list[list[str]]

phrase = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3)
grammars = st.lists(phrase, min_size=1, max_size=4)
LONGEST = 5


def spellable(vocabulary: Vocabulary, given: Grammar) -> tuple[Phrases, Grammar]:
    """The automaton of the phrases that the vocabulary can spell."""
    kept = []
    for words in given:
        try:
            build_phrases([" ".join(words)], vocabulary)
            kept.append(words)
        except ConfigError:
            continue
    built = build_phrases([" ".join(words) for words in kept] or ["a"], vocabulary)
    assert built is not None
    return built, kept or [["a"]]


def with_unknown(vocabulary: Vocabulary, given: Grammar) -> tuple[Phrases, Grammar]:
    _, kept = spellable(vocabulary, given)
    built = build_phrases([*(" ".join(words) for words in kept), "[unk]"], vocabulary)
    assert built is not None
    return built, kept


def score(phrases: Phrases, tokens: tuple[int, ...], end: bool) -> float:
    """The sum of the scores of a text; -inf if one of its tokens is not possible."""
    state, total = START, 0.0
    for token in tokens:
        total += phrases.scores([state])[0, token]
        if total == -math.inf:
            return total
        state = phrases.after(state, token)
    return total + (phrases.scores([state])[0, -1] if end else 0.0)


def all_texts(vocabulary: Vocabulary, longest: int) -> list[tuple[int, ...]]:
    tokens = range(1, vocabulary.end)
    return [text for length in range(longest + 1) for text in itertools.product(tokens, repeat=length)]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["characters", "pieces", "no mark", "words"])
@settings(max_examples=12, deadline=None)
@given(given=grammars)
def test_the_texts_that_it_accepts_are_those_of_a_literal_reading(vocabulary: Vocabulary, given: Grammar) -> None:
    """Every text of a few tokens: accepted, incomplete or impossible."""
    phrases, kept = spellable(vocabulary, given)
    for text in all_texts(vocabulary, 3):
        whole = score(phrases, text, end=True)
        assert (whole == 0.0) == literal.accepts(vocabulary, text, kept), (text, kept)
        assert whole in (0.0, -UNFINISHED, -math.inf)


@settings(max_examples=8, deadline=None)
@given(given=st.lists(st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=2), min_size=1, max_size=3))
def test_a_token_is_possible_where_a_phrase_can_still_be_completed(given: Grammar) -> None:
    """No dead ends, and every completable prefix is possible."""
    phrases, kept = spellable(NO_MARK, given)
    accepted = [text for text in all_texts(NO_MARK, LONGEST) if literal.accepts(NO_MARK, text, kept)]
    beginnings = {text[:n] for text in accepted for n in range(len(text) + 1)}
    for text in all_texts(NO_MARK, 2):
        assert (score(phrases, text, end=False) == 0.0) == (text in beginnings), (text, kept)


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["characters", "pieces", "no mark", "words"])
@settings(max_examples=40, deadline=None)
@given(given=grammars, data=st.data())
def test_other_speech_costs_its_tokens(vocabulary: Vocabulary, given: Grammar, data: st.DataObject) -> None:
    """A whole text costs as many tokens as its best reading has in words that are no phrase."""
    phrases, kept = with_unknown(vocabulary, given)
    text = tuple(data.draw(st.lists(st.integers(1, vocabulary.end - 1), max_size=7)))
    whole = score(phrases, text, end=True)
    assert -math.inf < whole <= 0.0
    found = literal.words_with_tokens(vocabulary, text)
    if literal.is_tidy(vocabulary, text) and found:
        assert whole == pytest.approx(-UNKNOWN * literal.least_cost(found, kept))


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["characters", "pieces", "no mark", "words"])
@settings(max_examples=60, deadline=None)
@given(given=grammars, unknown=st.booleans(), data=st.data())
def test_committed_words_stay(vocabulary: Vocabulary, given: Grammar, unknown: bool, data: st.DataObject) -> None:
    """Token by token, committed text is never removed, and the printed text begins with it, also at the end."""
    phrases, kept = with_unknown(vocabulary, given) if unknown else spellable(vocabulary, given)
    printed = PhraseText(vocabulary, phrases)
    text = walk(phrases, data)
    before: list[str] = []
    for length in range(len(text) + 1):
        committed = [span.text for span in printed.committed(text[:length])]
        assert committed[: len(before)] == before
        for shown in (printed.words(text[:length]), printed.ended(text[:length])):
            assert [span.text for span in shown][: len(committed)] == committed
        before = committed
    ended = [word for span in printed.ended(text) if (word := literal.letters(span.text)) and span.text != "[unk]"]
    assert unknown or literal.is_sequence(ended, kept)


def walk(phrases: Phrases, data: st.DataObject) -> tuple[int, ...]:
    """Some text that is possible."""
    text: tuple[int, ...] = ()
    state = START
    for _ in range(data.draw(st.integers(0, 10))):
        possible = np.flatnonzero(phrases.scores([state])[0, :-1] > -math.inf).tolist()
        if not possible:
            break
        text = *text, data.draw(st.sampled_from(possible))
        state = phrases.after(state, text[-1])
    return text


def ids(vocabulary: Vocabulary, *tokens: str) -> tuple[int, ...]:
    return tuple(1 + vocabulary.tokens.index(token) for token in tokens)


def texts_of(printed: PhraseText, text: tuple[int, ...]) -> tuple[str, str, str]:
    """The printed words of an open text, its committed words, and its words if it ends."""
    parts = printed.words(text), printed.committed(text), printed.ended(text)
    return tuple(" ".join(span.text for span in spans) for spans in parts)  # type: ignore[return-value]


DIGITS = Vocabulary("words", ("one", "two", "three", "four"))


def test_an_incomplete_phrase_is_shown_but_neither_committed_nor_kept() -> None:
    printed = PhraseText(DIGITS, build_phrases(["one two", "Three!"], DIGITS))
    assert texts_of(printed, ids(DIGITS, "three", "one")) == ("three one", "three", "three")
    assert texts_of(printed, ids(DIGITS, "three", "one", "two")) == ("three one two",) * 3


def test_other_speech_is_printed_as_one_word() -> None:
    printed = PhraseText(DIGITS, build_phrases(["one two", "three", "[unk]"], DIGITS))
    assert texts_of(printed, ids(DIGITS, "four", "four")) == ("[unk]", "[unk]", "[unk]")
    assert texts_of(printed, ids(DIGITS, "four", "one")) == ("[unk] one", "[unk]", "[unk]")
    assert texts_of(printed, ids(DIGITS, "four", "one", "two")) == ("[unk] one two",) * 3
    assert texts_of(printed, ids(DIGITS, "one", "three")) == ("[unk] three",) * 3
    assert [tuple(span) for span in printed.ended(ids(DIGITS, "four", "one", "three"))] == [
        ("[unk]", 0, 2),
        ("three", 2, 3),
    ]


def test_possible_costs_are_lent() -> None:
    phrases = build_phrases(["one two", "[unk]"], DIGITS)
    assert phrases is not None
    np.testing.assert_allclose(phrases.lent([START]), [[0, UNKNOWN, 0, 0, 0, 0]])
    one = phrases.after(START, 1)
    np.testing.assert_allclose(phrases.lent([one]), [[0, UNKNOWN, 0, 0, 0, 0]])  # "two" completes the phrase
    np.testing.assert_allclose(phrases.scores([one])[0, 1:], -UNKNOWN * np.array([1, 0, 2, 2, 1]))


def test_a_list_of_other_speech_alone() -> None:
    printed = PhraseText(DIGITS, build_phrases(["[UNK]"], DIGITS))
    assert texts_of(printed, ids(DIGITS, "one", "two")) == ("[unk]",) * 3


@pytest.mark.parametrize("phrase", ["a", "ab", "b ab"])
def test_case_and_punctuation_of_a_phrase_do_not_count(phrase: str) -> None:
    loud = ", ".join(word.upper() for word in phrase.split()) + "?!"
    one, other = build_phrases([phrase], PIECES), build_phrases([loud], PIECES)
    assert one is not None
    assert other is not None
    for text in all_texts(PIECES, 3):
        assert score(one, text, end=True) == score(other, text, end=True)


def test_equal_lists_share_an_automaton() -> None:
    assert build_phrases(["a", "b"], PIECES) is build_phrases(("a", "b"), PIECES)
    assert build_phrases([], PIECES) is None


@pytest.mark.parametrize(("vocabulary", "phrases", "said"), [
    (DIGITS, ["one", "five one"], 'the phrase "five one" is not possible: the vocabulary cannot spell "five"'),
    (NO_MARK, ["a baa"], 'the phrase "a baa" is not possible: the vocabulary cannot spell "baa"'),
    (DIGITS, ["?!"], 'the phrase "\\?!" is empty'),
    (DIGITS, ["one [unk]"], r"\[unk\] must be a phrase by itself"),
    (DIGITS, "one", "must be a list of texts"),
    (DIGITS, [1], "must be a list of texts"),
])  # fmt: skip
def test_phrases_that_are_not_possible(vocabulary: Vocabulary, phrases: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_phrases(phrases, vocabulary)
