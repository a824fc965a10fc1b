"""Case and punctuation errors, and Whisper's English normaliser."""

from __future__ import annotations

import pytest

from headsync.errors import ConfigError
from headsync.evaluation.error_rate import count_errors
from headsync.evaluation.formatting import FormattingCounts, count_formatting
from headsync.evaluation.normalise import normaliser


@pytest.mark.parametrize(
    ("reference", "hypothesis", "words", "case", "punctuation"),
    [
        ("Yes, I do.", "Yes, I do.", 3, 0, 0),
        ("Yes, I do.", "yes I do", 3, 1, 2),
        ("Yes, I do.", "Yes, I did.", 2, 0, 0),  # a wrong word is no formatting error
        ('He said "no".', "He said no.", 3, 0, 1),
        ("It's five - or six.", "It's five or six.", 4, 0, 0),  # punctuation alone is no word
        ("no case here", "No, case here.", 0, 0, 0),  # the reference has no formatting
        ("ALL CAPITALS", "all capitals", 0, 0, 0),
        ("", "Yes.", 0, 0, 0),
        ("Yes.", "", 0, 0, 0),
    ],
)
def test_formatting_errors_by_hand(reference: str, hypothesis: str, words: int, case: int, punctuation: int) -> None:
    assert count_formatting(reference, hypothesis) == FormattingCounts(words, case, punctuation)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Let's go!", "let us go"),
        ("I can't, he won't.", "i can not he will not"),
        ("Mr. Park visited the colour theatre", "mister park visited the color theater"),
        ("uh, um, one hundred and thirteen", "113"),
        ("double oh seven", "007"),
        ("twenty one percent", "21%"),
        ("two dollars and fifty cents", "$2.50"),
        ("[laughter] hello (noise)", "hello"),
        ("", ""),
    ],
)
def test_the_english_normaliser_is_whispers(text: str, normal: str) -> None:
    pytest.importorskip("whisper_normalizer")
    assert normaliser("english")(text) == normal


def test_errors_are_counted_on_normalised_texts() -> None:
    pytest.importorskip("whisper_normalizer")
    normalise = normaliser("english")
    assert count_errors(normalise("He's got twenty-one cats."), normalise("he is got 21 dogs")).errors == 2
    assert normaliser("none")("As it IS.") == "As it IS."
    assert normaliser("words")("It's “one”, Two -- three-four!") == "it's one two three four"
    with pytest.raises(ConfigError, match="it can be none, words, english"):
        normaliser("german")  # type: ignore[arg-type]
