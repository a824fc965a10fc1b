"""The phrase list, literally: what a text may be, and how it is read, by trying every way to cut it into phrases."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

from headsync.text.vocabulary import SPACE, Vocabulary, is_sound

MARK = "▁"


def letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text.lower())


def pieces(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[str]:
    """Each token as text: a space before a word, and "~" for a sound."""
    found = []
    for token in (vocabulary.tokens[n - 1] for n in tokens):
        if is_sound(token):
            found.append("~")
        elif vocabulary.kind == "words":
            found.append(" " + token)
        else:
            found.append(token.replace(SPACE, " ").replace(MARK, " "))
    return found


def is_tidy(vocabulary: Vocabulary, tokens: Sequence[int]) -> bool:
    """Between letters: at most one token of punctuation, one boundary, one token of punctuation.

    After a sound the boundary may be written again.
    """
    marks = ""
    for piece in pieces(vocabulary, tokens):
        if letters(piece) and piece != "~":
            marks += " a" if piece.startswith(" ") else "a"
        else:
            marks += {"~": "~", " ": "_"}.get(piece, "=" if piece.startswith(" ") else ".")
    after_sound = r"(_?~+)*(\.|_\.?|=)?~*"
    gap = rf"(\.?_?~+{after_sound}|\.?(_\.?|=)?~*)"
    return re.fullmatch(rf"{after_sound}( ?a{gap})*", marks) is not None


def words(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[str]:
    """The words in letters."""
    text = "".join(pieces(vocabulary, tokens)).replace("~", " ")
    return [found for word in text.split() if (found := letters(word))]


def is_sequence(text: Sequence[str], phrases: Sequence[Sequence[str]]) -> bool:
    return not text or any(
        list(text[: len(phrase)]) == list(phrase) and is_sequence(text[len(phrase) :], phrases) for phrase in phrases
    )


def accepts(vocabulary: Vocabulary, tokens: Sequence[int], phrases: Sequence[Sequence[str]]) -> bool:
    """Whether a text consists of phrases."""
    found = words(vocabulary, tokens)
    has_text = any(piece.strip(" ~") for piece in pieces(vocabulary, tokens))
    return is_tidy(vocabulary, tokens) and is_sequence(found, phrases) and bool(found or not has_text)


def least_cost(words: Sequence[tuple[str, int]], phrases: Sequence[Sequence[str]]) -> int:
    """The fewest tokens of other speech in any reading; words are given with their numbers of tokens."""

    @cache
    def rest(place: int) -> float:
        if place == len(words):
            return 0
        ways = [words[place][1] + rest(place + 1)]
        for phrase in phrases:
            end = place + len(phrase)
            if [word for word, _ in words[place:end]] == list(phrase):
                ways.append(rest(end))
        return min(ways, default=math.inf)

    return int(rest(0))


def words_with_tokens(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[tuple[str, int]]:
    """The words in letters, each with the number of its tokens that have letters."""
    found: list[tuple[str, int]] = []
    joins = False
    for piece in pieces(vocabulary, tokens):
        joins = joins and not piece.startswith((" ", "~"))
        if text := letters(piece):
            found[-1:] = [(found[-1][0] + text, found[-1][1] + 1)] if joins else [*found[-1:], (text, 1)]
            joins = True
    return found
