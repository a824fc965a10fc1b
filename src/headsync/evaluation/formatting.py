"""Errors of case and punctuation in words that are correct otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Self

_EDGES = re.compile(r"^([\W_]*)(.*?)([\W_]*)$", re.DOTALL)


class Additive:
    """A base class of dataclasses that are added field by field."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class FormattingCounts(Additive):
    """Words of the reference that were recognised, and errors of case and punctuation among them; they add up."""

    words: int = 0
    case: int = 0
    punctuation: int = 0


def bare(word: str) -> str:
    """A word in lower case, without punctuation at its edges."""
    return _split(word)[1].lower()


def is_formatted(text: str) -> bool:
    """Whether a text has both cases or punctuation; other texts are not scored for formatting."""
    mixed = any(sign.isupper() for sign in text) and any(sign.islower() for sign in text)
    return mixed or any("".join((before, after)) for before, _, after in map(_split, text.split()))


def equal_words(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[int, int]]:
    """The numbers of equal words in a minimum edit distance alignment."""
    if not reference or not hypothesis:
        return []
    import jiwer  # here: recognition imports this module and does not need it

    (chunks,) = jiwer.process_words(" ".join(reference), " ".join(hypothesis)).alignments
    return [
        (chunk.ref_start_idx + n, chunk.hyp_start_idx + n)
        for chunk in chunks
        if chunk.type == "equal"
        for n in range(chunk.ref_end_idx - chunk.ref_start_idx)
    ]


def count_formatting(reference: str, hypothesis: str) -> FormattingCounts:
    """Align the bare words, and compare case and punctuation of those that are equal."""
    if not is_formatted(reference):
        return FormattingCounts()
    said, written = ([_split(word) for word in text.split() if bare(word)] for text in (reference, hypothesis))
    bare_words = ([core.lower() for _, core, _ in words] for words in (said, written))
    pairs = [(said[n], written[m]) for n, m in equal_words(*bare_words)]
    case = sum(one[1] != other[1] for one, other in pairs)
    punctuation = sum((one[0], one[2]) != (other[0], other[2]) for one, other in pairs)
    return FormattingCounts(len(pairs), case, punctuation)


def _split(word: str) -> tuple[str, str, str]:
    """Punctuation before a word, the word, punctuation after it."""
    found = _EDGES.match(word)
    assert found is not None
    return found[1], found[2], found[3]
