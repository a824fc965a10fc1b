"""The words of a text under a phrase list: which are printed, and which are committed.

The reading of a text is the cheapest path through the automaton (see `headsync.decoding.phrases`). Further tokens may
change it, but only to one that continues a reading that is still possible. A word is therefore committed if these
agree. Without other speech there is one reading, but an incomplete phrase is not printed, so a word is committed only
after its phrase is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from headsync.decoding.phrase_tree import BEGINS, BEGUN, BETWEEN, JOINED, NOTHING, OTHER
from headsync.decoding.phrases import BROKEN, POINTED_AGAIN, SOUNDED, START, Moves, Phrases, PhraseState
from headsync.text.vocabulary import Span, Vocabulary

N = TypeVar("N")
UNKNOWN_WORD = "[unk]"

Labels = tuple[bool, ...]  # for each token, whether it is other speech
Readings = dict[int, Labels]  # by node


@dataclass(frozen=True)
class PhraseText:
    vocabulary: Vocabulary
    phrases: Phrases | None  # None: unchanged

    def words(self, ids: Sequence[int]) -> list[Span]:
        """The words of a text so far, an incomplete phrase included."""
        spans = self.vocabulary.words(ids)
        if self.phrases is None or not self.phrases.unknown:
            return spans
        state, readings = self._read(self.phrases, ids)
        return _printed(spans, readings[min(state.costs, key=lambda pair: pair[1])[0]])

    def ended(self, ids: Sequence[int]) -> list[Span]:
        """The words of a text that has ended, without an incomplete phrase."""
        spans = self.vocabulary.words(ids)
        if self.phrases is None:
            return spans
        if not self.phrases.unknown:
            return _before(spans, self._completed(self.phrases, ids, is_over=True))
        readings = _crossed(self.phrases, *self._read(self.phrases, ids))
        return _printed(spans, readings[BETWEEN]) if BETWEEN in readings else []

    def committed(self, ids: Sequence[int]) -> list[Span]:
        """The words that no further token can change."""
        spans = self.vocabulary.words(ids, complete=True)
        if self.phrases is None:
            return spans
        if not self.phrases.unknown:
            return _before(spans, self._completed(self.phrases, ids))
        state, readings = self._read(self.phrases, ids)
        if self.vocabulary.kind == "words":  # no token continues a word
            readings = _crossed(self.phrases, state, readings)
        agreed = common_prefix(list(readings.values()))
        labels = () if NOTHING in readings else agreed  # punctuation alone is not printed
        return _printed(_before(spans, len(labels)), labels)

    def _completed(self, phrases: Phrases, ids: Sequence[int], is_over: bool = False) -> int:
        """The tokens up to the last end of a word at which no phrase is incomplete; `is_over`: the last is over."""
        state, end = START, 0
        for place, token in enumerate(ids):
            if phrases.is_complete(state) and (self._is_over(state) or phrases.spellings.class_V[token] in BEGINS):
                end = place
            state = phrases.after(state, token)
        return len(ids) if phrases.is_complete(state) and (is_over or self._is_over(state)) else end

    def _is_over(self, state: PhraseState) -> bool:
        """Whether the last word is over."""
        return self.vocabulary.kind == "words" or state.gap in (BROKEN, SOUNDED, POINTED_AGAIN)

    def _read(self, phrases: Phrases, ids: Sequence[int]) -> tuple[PhraseState, Readings]:
        """The best reading that leads to each node."""
        state = START
        readings: Readings = {NOTHING: ()}
        for token in ids:
            is_silent = phrases.spellings.class_V[token] not in (JOINED, BEGUN)
            readings = _followed(readings, phrases.moves(state, token), is_silent)
            state = phrases.after(state, token)
        return state, readings


def _followed(readings: Readings, moves: Moves, is_silent: bool) -> Readings:
    """With one more token; one without letters belongs to the words before it."""
    return {
        node: (*readings[old], node == OTHER or (is_silent and readings[old][-1:] == (True,)))
        for node, (_, old) in moves.items()
    }


def _crossed(phrases: Phrases, state: PhraseState, readings: Readings) -> Readings:
    """At the end of a word."""
    return {node: readings[old] for node, (_, old) in phrases.crossed(state).items()}


def common_prefix(texts: Sequence[tuple[N, ...]]) -> tuple[N, ...]:
    first, last = min(texts), max(texts)  # all others lie between them in alphabetical order
    differs = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:differs]


def _before(spans: Sequence[Span], end: int) -> list[Span]:
    return [span for span in spans if span.end <= end]


def _printed(spans: Sequence[Span], labels: Labels) -> list[Span]:
    """With other speech as [unk], adjacent words as one."""
    words: list[Span] = []
    was_unknown = False
    for span in spans:
        is_unknown = labels[span.end - 1]  # of its letters, or of punctuation after them
        if is_unknown and was_unknown:
            words[-1] = words[-1]._replace(end=span.end)
        else:
            words.append(span._replace(text=UNKNOWN_WORD) if is_unknown else span)
        was_unknown = is_unknown
    return words
