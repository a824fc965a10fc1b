"""Hotwords: phrases to listen for, each with a boost in log probability.

A hypothesis earns a phrase's boost token by token and keeps it once the phrase stands there as whole words; where it
goes on otherwise, it gives back what it had earned. So a boost helps a phrase through the beam, and changes the score
of no text without it. Whether anything is written at all is not decided by what may have to be given back (`lent`),
for a text that has gone on does not come back. A phrase is counted as often as it occurs, also within a longer one.

The phrases are a tree whose nodes are their beginnings; from a node that cannot go on, the search falls back to the
longest other beginning that the text ends in (Aho and Corasick). A token that goes on with no phrase leads to one of
two more nodes: `ROOT`, where a word may begin, or `INSIDE` some other word, where no phrase begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from headsync.engine import BoolArray, IntArray
from headsync.search.scorers import Scores

ROOT, INSIDE = 0, 1

Phrase = tuple[tuple[int, ...], float]


@dataclass(frozen=True)
class Words:
    """Where words begin among tokens: at certain ones, or after a space; without either, at every token."""

    space: int | None = None
    first: frozenset[int] = frozenset()

    def begins(self, before: int | None, token: int) -> bool:
        """Whether a word begins with `token`, which stands after `before`."""
        if self.space is not None:
            return before in (None, self.space) and token != self.space
        return not self.first or token in self.first

    def ends(self, token: int) -> bool:
        """Whether the word before `token` is complete."""
        return token == self.space if self.space is not None else not self.first or token in self.first


@dataclass(frozen=True)
class Hotwords:
    """The tree of all phrases; the state of a hypothesis is the number of its node."""

    size: int  # classes, the last of which is <eos>
    earned_N: Scores  # at each node, on the way to a phrase
    kept_N: Scores  # of the phrases that are complete at a node, if no word goes on there
    ends_V: BoolArray  # tokens before which a word is complete
    other_V: IntArray  # the node after a token that goes on with no phrase
    arcs: tuple[dict[int, int], ...]  # the others

    @classmethod
    def build(
        cls, phrases: Sequence[Phrase], size: int, space: int | None = None, first: Collection[int] = ()
    ) -> Hotwords:
        """Phrases as tokens, each with its boost.

        They are found as whole words: `space` is the token between words, or `first` are those that begin one.
        """
        words = Words(space, frozenset(first))
        tree = _Tree(words)
        for tokens, boost in dict(phrases).items():
            tree.add(tokens, boost)
        tree.link()
        ends_V = np.array([words.ends(token) or token == size - 1 for token in range(size)])
        roots = [token == space or space is None for token in range(size)]
        other_V = np.where(roots, ROOT, INSIDE)
        return cls(size, np.array(tree.earned), np.array(tree.kept), ends_V, other_V, tuple(tree.arcs))

    def scores(self, node_B: Sequence[int]) -> Scores:
        """What each token adds to the score of a hypothesis at each node (B, V)."""
        nodes = np.asarray(node_B)
        score_BV = np.where(self.ends_V, self.kept_N[nodes, None], 0.0) - self.earned_N[nodes, None]
        for row, node in enumerate(nodes):
            arcs = self.arcs[node]
            score_BV[row, list(arcs)] += self.earned_N[list(arcs.values())]
        return score_BV

    def lent(self, node_B: Sequence[int]) -> Scores:
        """What a hypothesis would have to give back after each token, if no more of a phrase followed (B, V)."""
        lent_BV = np.zeros((len(node_B), self.size))
        for row, node in enumerate(node_B):
            tokens, nodes = list(self.arcs[node]), list(self.arcs[node].values())
            lent_BV[row, tokens] = self.earned_N[nodes] - self.kept_N[nodes]
        return lent_BV

    def after(self, node: int, token: int) -> int:
        """The node of a hypothesis with one token more."""
        return self.arcs[node].get(token, int(self.other_V[token]))


class _Tree:
    """The phrases while they are put together."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.paths: list[tuple[int, ...]] = [(), ()]
        self.earned, self.kept = [0.0, 0.0], [0.0, 0.0]
        self.arcs: list[dict[int, int]] = [{}, {}]

    def add(self, tokens: tuple[int, ...], boost: float) -> None:
        assert tokens
        node = ROOT
        for depth, token in enumerate(tokens, 1):
            if token not in self.arcs[node]:
                self.arcs[node][token] = len(self.paths)
                self.paths.append(tokens[:depth])
                self.earned.append(0.0)
                self.kept.append(0.0)
                self.arcs.append({})
            node = self.arcs[node][token]
            self.earned[node] = max(self.earned[node], boost * depth / len(tokens))
        self.kept[node] += boost

    def link(self) -> None:
        """Each node also does what the longest beginning does that it ends in; shorter nodes are linked first."""
        places = {path: node for node, path in enumerate(self.paths) if path}
        for node in sorted(range(2, len(self.paths)), key=lambda n: len(self.paths[n])):
            other = self._falls_to(self.paths[node], places)
            self.kept[node] += self.kept[other]
            self.earned[node] = max(self.earned[node], self.kept[node], self.earned[other])
            self.arcs[node] = {**self.arcs[other], **self.arcs[node]}

    def _falls_to(self, path: tuple[int, ...], places: dict[tuple[int, ...], int]) -> int:
        for first in range(1, len(path)):
            if path[first:] in places and self.words.begins(path[first - 1], path[first]):
                return places[path[first:]]
        return ROOT if self.words.space in (None, path[-1]) else INSIDE
