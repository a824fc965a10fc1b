"""Phrase list: the text is a sequence of given phrases, in any case, punctuation and segmentation into tokens.

Words are compared by their letters (see `headsync.decoding.phrase_tree`). Tokens without letters are free, but between
two words there is at most one token of punctuation, one boundary and again one token of punctuation, in this order, so
that they cannot bypass the list. Sounds such as <noise> are free at the end of a word.

A text that ends inside a phrase has the cost `UNFINISHED`, and the words of that phrase are not printed. So the best
complete text wins, unless it is less probable by more than this.

With the phrase "[unk]", other speech is possible: any words, at the cost `UNKNOWN` for each of their tokens. Each text
has the reading of least cost; of equal readings, any. Words outside all phrases are printed as [unk], adjacent ones as
one. While a phrase is incomplete, its tokens have no cost; if it is not completed, they are charged all at once. Like
the boosts of hotwords, what may be charged later does not decide whether a text continues or ends.

The automaton is determinised step by step: a state holds each node that the text can be at, with the number of tokens
of other speech on the best path to it, less that of the best node. The tokens that can follow a node are cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headsync.decoding.phrase_tree import (
    BEGINS,
    BEGUN,
    BETWEEN,
    BREAK,
    BREAK_POINT,
    JOINED,
    NEVER,
    NOTHING,
    OTHER,
    POINT,
    SOUND,
    PhraseTree,
    Spellings,
)
from headsync.engine import IntArray
from headsync.lm import Scores

UNKNOWN = 0.5  # cost of a token of other speech, in log probability
UNFINISHED = 10.0  # cost of an end inside a phrase

# What has been written since the last letter; at the beginning of a text, FIRST.
LETTER, POINTED, BROKEN, POINTED_AGAIN, SOUNDED, FIRST = range(6)
GAPS: dict[int, dict[int, int]] = {
    POINT: {LETTER: POINTED, BROKEN: POINTED_AGAIN, SOUNDED: POINTED_AGAIN, FIRST: POINTED_AGAIN},
    BREAK: dict.fromkeys((LETTER, POINTED, SOUNDED, FIRST), BROKEN),
    BREAK_POINT: dict.fromkeys((LETTER, POINTED, SOUNDED, FIRST), POINTED_AGAIN),
    SOUND: {**dict.fromkeys((LETTER, POINTED, BROKEN, SOUNDED, FIRST), SOUNDED), POINTED_AGAIN: POINTED_AGAIN},
}

Costs = tuple[tuple[int, int], ...]  # nodes and their costs, in tokens
Source = tuple[int, int, int]  # a node, its cost, and the node before it
Moves = dict[int, tuple[int, int]]  # a node -> its cost, and the node before it


class PhraseState(NamedTuple):
    gap: int
    costs: Costs


START = PhraseState(FIRST, ((NOTHING, 0),))


class _Table(NamedTuple):
    """The tokens that continue a phrase from a node, and the tokens that complete one."""

    tokens: IntArray
    complete: IntArray


@dataclass(frozen=True, eq=False)
class Phrases:
    """The automaton of a phrase list; immutable except for its tables, shared by every stream."""

    spellings: Spellings
    tree: PhraseTree
    unknown: bool  # whether other speech is possible
    _tables: dict[tuple[int, bool], _Table] = field(default_factory=dict)

    @classmethod
    def build(cls, phrases: Sequence[Sequence[str]], spellings: Spellings, unknown: bool = False) -> Phrases:
        """The automaton of phrases, each a list of words in letters."""
        return cls(spellings, PhraseTree.build(phrases, spellings), unknown)

    def scores(self, states: Sequence[PhraseState]) -> Scores:
        """The score of each token after each state, 0 or less (B, V); the last is <eos>."""
        score_BV = np.stack([-UNKNOWN * self._token_costs(state)[0] for state in states])
        score_BV[:, -1] = [-self.end_cost(state) for state in states]
        return score_BV

    def lent(self, states: Sequence[PhraseState]) -> Scores:
        """The cost of an end after each token, because of an incomplete phrase (B, V)."""
        lent_BV = np.zeros((len(states), len(self.spellings.letters)))
        for lent_V, state in zip(lent_BV, states, strict=True) if self.unknown else ():
            cost_V, end_V = self._token_costs(state)
            lent_V[1:-1] = UNKNOWN * (end_V[1:-1] - cost_V[1:-1])
        return lent_BV

    def after(self, state: PhraseState, token: int) -> PhraseState:
        """The state after a token that is possible."""
        kind, moves = self.spellings.class_V[token], self.moves(state, token)
        gap = LETTER if kind in (JOINED, BEGUN) else GAPS[kind].get(state.gap, POINTED_AGAIN)
        return PhraseState(gap, _normalised(moves)[0])

    def moves(self, state: PhraseState, token: int) -> Moves:
        """The nodes after a token; each with its cost and the node before it."""
        return self._moves(state, int(self.spellings.class_V[token]), self.spellings.letters[token])

    def crossed(self, state: PhraseState) -> Moves:
        """The nodes at the end of a word."""
        return _best(self._sources(state.costs, begins=True))

    def end_cost(self, state: PhraseState) -> float:
        complete = [cost for node, (cost, _) in self.crossed(state).items() if node == BETWEEN]
        nothing = [cost + (state.gap == POINTED_AGAIN) for node, cost in state.costs if node == NOTHING]
        if not self.unknown:
            return 0.0 if complete or 0 in nothing else UNFINISHED
        return UNKNOWN * min(complete + nothing)

    def is_complete(self, state: PhraseState) -> bool:
        """Whether a text may end without the cost of an incomplete phrase; with other speech always."""
        return self.unknown or not self.end_cost(state)

    def _sources(self, costs: Costs, begins: bool) -> list[Source]:
        """The nodes from which a token leads on."""
        crossed = self.tree.crossed
        return [(node, cost, old) for old, cost in costs for node in (crossed[old] if begins else (old,))]

    def _moves(self, state: PhraseState, kind: int, letters: str) -> Moves:
        begins = kind in BEGINS
        sources = self._sources(state.costs, begins)
        if kind not in (JOINED, BEGUN) and state.gap in GAPS[kind]:
            return _best((node, cost, old) for node, cost, old in sources if self.tree.open[node] or not begins)
        return self._spelled(sources, begins, letters)

    def _spelled(self, sources: Sequence[Source], begins: bool, letters: str) -> Moves:
        """The nodes after letters; a token without any is other speech."""
        arcs = self.tree.arcs[begins]
        found = [(arcs[node][letters], cost, old) for node, cost, old in sources if letters in arcs[node]]
        if self.unknown:
            found += [(OTHER, cost + 1, old) for node, cost, old in sources if node <= OTHER]
        return _best(found)

    def _token_costs(self, state: PhraseState) -> tuple[Scores, Scores]:
        """The costs after each token, and if the text ended then, for tokens that can complete a phrase (V,)."""
        class_costs = [_normalised(self._moves(state, kind, ""))[1] for kind in range(NEVER)]
        cost_V: Scores = np.array([*class_costs, math.inf])[self.spellings.class_V]
        end_V = cost_V.copy()
        for begins in (False, True):
            for node, cost, _ in self._sources(state.costs, begins):
                table = self._table(node, begins)
                cost_V[table.tokens] = np.minimum(cost_V[table.tokens], cost)
                end_V[table.complete] = np.minimum(end_V[table.complete], cost)
        return cost_V, end_V

    def _table(self, node: int, begins: bool) -> _Table:
        table = self._tables.get((node, begins))
        if table is None:
            table = self._tables[node, begins] = self._new_table(node, begins)
        return table

    def _new_table(self, node: int, begins: bool) -> _Table:
        arcs, pieces = self.tree.arcs[begins][node], self.spellings.pieces[begins]
        complete = [letters for letters, to in arcs.items() if BETWEEN in self.tree.crossed[to]]
        none = np.zeros(0, np.int64)
        return _Table(*(np.concatenate([none, *map(pieces.__getitem__, some)]) for some in (arcs, complete)))


def _best(sources: Iterable[Source]) -> Moves:
    """The cheapest path to each node."""
    moves: Moves = {}
    for node, cost, old in sources:
        moves[node] = min(moves.get(node, (cost, old)), (cost, old))
    return moves


def _normalised(moves: Moves) -> tuple[Costs, float]:
    """Costs above the least of them, and that; infinite if there is no node."""
    least = min((cost for cost, _ in moves.values()), default=math.inf)
    return tuple(sorted((node, int(cost - least)) for node, (cost, _) in moves.items())), least
