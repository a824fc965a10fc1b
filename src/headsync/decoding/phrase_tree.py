"""The phrases of a list as a tree of letters, and the tokens that lead from one node to another.

Case and punctuation do not count: text is compared by its letters, digits and combining marks. Every segmentation of a
word into tokens is a path in the tree, so the tree has no tokens. A token is its letters and whether it begins a word.

A node is a beginning of a phrase. Three nodes come first: `NOTHING`, where nothing has been written, `BETWEEN` phrases,
which has the same arcs, and `OTHER`, a word of other speech. All other nodes are larger than the nodes that lead to
them. The arc " " ends a word within a phrase.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headsync.engine import IntArray
from headsync.text.vocabulary import UNKNOWN, Vocabulary, is_sound, spelled

NOTHING, BETWEEN, OTHER = 0, 1, 2

# Classes of tokens: letters within a word or at its beginning, other tokens by what they write, and the rest.
JOINED, BEGUN, POINT, BREAK, BREAK_POINT, SOUND, NEVER = range(7)
BEGINS = (BEGUN, BREAK, BREAK_POINT, SOUND)  # those that end the word before them


def letters_of(text: str) -> str:
    """The characters of a text that are compared."""
    folded = unicodedata.normalize("NFC", text).casefold()
    return "".join(c for c in folded if c.isalnum() or unicodedata.category(c).startswith("M"))


@dataclass(frozen=True, eq=False)
class Spellings:
    """The tokens of a vocabulary by their letters."""

    class_V: IntArray
    letters: tuple[str, ...]  # of every class of the network
    pieces: tuple[dict[str, IntArray], dict[str, IntArray]]  # letters -> tokens: within words, and at their beginning
    beginnings: tuple[frozenset[str], frozenset[str]]  # of those letters
    has_break: bool  # whether some token is a word boundary alone

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, vocabulary: Vocabulary) -> Spellings:
        never = (NEVER, "")
        known = [never, *(_classified(vocabulary, token) for token in vocabulary.tokens), never]
        classes, letters = zip(*known, strict=True)
        pieces = tuple(_by_letters(known, wanted) for wanted in (JOINED, BEGUN))
        beginnings = tuple(frozenset(text[:n] for text in each for n in range(1, len(text) + 1)) for each in pieces)
        return cls(np.array(classes), letters, pieces, beginnings, BREAK in classes)  # type: ignore[arg-type]

    def spells(self, word: str, first: bool) -> bool:
        """Whether tokens can spell a word: the first of a text, or a later one."""
        begun, joined = self.pieces[True], self.pieces[False]
        reached = {end for end in range(1, len(word) + 1) if word[:end] in begun}
        if first or self.has_break:
            reached |= {end for end in range(1, len(word) + 1) if word[:end] in joined}
        for end in range(1, len(word) + 1):
            if any(start < end and word[start:end] in joined for start in reached):
                reached.add(end)
        return len(word) in reached


def _classified(vocabulary: Vocabulary, token: str) -> tuple[int, str]:
    if is_sound(token):
        return SOUND, ""
    begins, text = spelled(vocabulary.kind, token)
    if token == UNKNOWN or letters_of(text):  # <unk> spells no phrase
        return BEGUN if begins else JOINED, "" if token == UNKNOWN else letters_of(text)
    if not text:
        return BREAK, ""
    return BREAK_POINT if begins else POINT, ""


def _by_letters(known: Sequence[tuple[int, str]], wanted: int) -> dict[str, IntArray]:
    found: dict[str, list[int]] = {}
    for token, (kind, letters) in enumerate(known):
        if kind == wanted and letters:
            found.setdefault(letters, []).append(token)
    return {letters: np.array(tokens) for letters, tokens in found.items()}


@dataclass(frozen=True, eq=False)
class PhraseTree:
    """The tree; its arcs lead only to nodes from which tokens can complete a phrase."""

    crossed: tuple[tuple[int, ...], ...]  # the nodes after the end of a word; where a word begins, the node itself
    open: tuple[bool, ...]  # whether the text can continue here after a word boundary
    arcs: tuple[tuple[dict[str, int], ...], tuple[dict[str, int], ...]]  # by the letters of tokens, as `pieces`

    @classmethod
    def build(cls, phrases: Sequence[Sequence[str]], spellings: Spellings) -> PhraseTree:
        """The tree of phrases, each a list of words in letters."""
        children: list[dict[str, int]] = [{}, {}, {}]
        ends = set()
        for words in phrases:
            node = BETWEEN
            for letter in " ".join(words):
                if letter not in children[node]:
                    children[node][letter] = len(children)
                    children.append({})
                node = children[node][letter]
            ends.add(node)
        children[NOTHING] = children[BETWEEN]
        return _with_arcs(children, ends, spellings)


def _with_arcs(children: Sequence[dict[str, int]], ends: set[int], spellings: Spellings) -> PhraseTree:
    """The tree with the arcs of tokens; longer beginnings first, since arcs to dead ends are left out."""
    starts = {NOTHING, BETWEEN, *(node[" "] for node in children if " " in node)}
    alive, opens = [False] * len(children), [False] * len(children)
    arcs: tuple[list[dict[str, int]], list[dict[str, int]]] = [{} for _ in children], [{} for _ in children]
    for node in reversed(range(len(children))):
        for begins in (False, True) if node in starts else (False,):
            paths = _paths(children, node, spellings, begins)
            arcs[begins][node] = {letters: to for letters, to in paths if alive[to]}
        opens[node] = node <= OTHER or bool(arcs[False][node] or arcs[True][node])
        next_word = [child for letter, child in children[node].items() if letter == " "]
        goes_on = any(arcs[True][child] or (spellings.has_break and opens[child]) for child in next_word)
        alive[node] = node in ends or bool(arcs[False][node]) or goes_on
    crossed = [_crossed(node, children[node], ends, starts) for node in range(len(children))]
    return PhraseTree(tuple(crossed), tuple(opens), (tuple(arcs[False]), tuple(arcs[True])))


def _paths(
    children: Sequence[dict[str, int]], node: int, spellings: Spellings, begins: bool
) -> Iterator[tuple[str, int]]:
    """The letters of all tokens that can follow a node, and the node after them."""
    waiting = [("", node)]
    while waiting:
        before, at = waiting.pop()
        for letter, to in children[at].items():
            letters = before + letter
            if letters in spellings.beginnings[begins]:
                waiting.append((letters, to))
                if letters in spellings.pieces[begins]:
                    yield letters, to


def _crossed(node: int, children: dict[str, int], ends: set[int], starts: set[int]) -> tuple[int, ...]:
    if node in starts:
        return (node,)
    complete = (BETWEEN,) if node in ends or node == OTHER else ()
    return (*complete, *((children[" "],) if " " in children else ()))
