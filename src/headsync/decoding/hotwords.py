"""Hotwords: phrases to favour, each with a boost in log probability.

A hypothesis earns the boost of a phrase token by token. It keeps the boost when the phrase is complete, as whole words;
otherwise the boost is removed again. A boost therefore keeps a phrase in the beam and does not change the score of a
text without the phrase. Boosts of incomplete phrases (`lent`) do not decide whether a text continues or ends, because
that cannot be undone. A phrase counts every time it occurs, also within a longer one.

The phrases form a tree whose nodes are their beginnings. From a node without a matching arc, the search falls back to
the longest other beginning that the text ends in (Aho and Corasick). A token that continues no phrase leads to one of
two nodes: `ROOT`, where a word may begin, or `INSIDE` another word, where no phrase begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from headsync.engine import BoolArray, IntArray
from headsync.lm import Scores

ROOT, INSIDE = 0, 1

Phrase = tuple[tuple[int, ...], float]


@dataclass(frozen=True)
class WordBoundaries:
    """Where words begin: at the tokens `first`, or after `space`; without either, at every token."""

    space: int | None = None
    first: frozenset[int] = frozenset()

    def begins(self, before: int | None, token: int) -> bool:
        """Whether a word begins with `token`, which follows `before`."""
        if self.space is not None:
            return before in (None, self.space) and token != self.space
        return not self.first or token in self.first

    def ends(self, token: int) -> bool:
        """Whether the word before `token` is complete."""
        return token == self.space if self.space is not None else not self.first or token in self.first


@dataclass(frozen=True)
class Hotwords:
    """The tree of all phrases; the state of a hypothesis is its node."""

    size: int  # classes, the last of which is <eos>
    earned_N: Scores  # at each node, for incomplete phrases
    kept_N: Scores  # for the phrases that are complete at a node, if a word ends there
    ends_V: BoolArray  # tokens before which a word ends
    other_V: IntArray  # the node after a token that continues no phrase
    arcs: tuple[dict[int, int], ...]  # the others

    @classmethod
    def build(
        cls, phrases: Sequence[Phrase], size: int, space: int | None = None, first: Collection[int] = ()
    ) -> Hotwords:
        """The tree of phrases in tokens, each with its boost.

        They match whole words: `space` is the token between words, or `first` are the tokens that begin one.
        """
        words = WordBoundaries(space, frozenset(first))
        tree = _Tree(words)
        for tokens, boost in dict(phrases).items():
            tree.add(tokens, boost)
        tree.link()
        ends_V = np.array([words.ends(token) or token == size - 1 for token in range(size)])
        roots = [token == space or space is None for token in range(size)]
        other_V = np.where(roots, ROOT, INSIDE)
        return cls(size, np.array(tree.earned), np.array(tree.kept), ends_V, other_V, tuple(tree.arcs))

    def scores(self, node_B: Sequence[int]) -> Scores:
        """The score of each token after each node (B, V)."""
        nodes = np.asarray(node_B)
        score_BV = np.where(self.ends_V, self.kept_N[nodes, None], 0.0) - self.earned_N[nodes, None]
        for row, node in enumerate(nodes):
            arcs = self.arcs[node]
            score_BV[row, list(arcs)] += self.earned_N[list(arcs.values())]
        return score_BV

    def lent(self, node_B: Sequence[int]) -> Scores:
        """The boost of incomplete phrases after each token, which may be lost (B, V)."""
        lent_BV = np.zeros((len(node_B), self.size))
        for row, node in enumerate(node_B):
            tokens, nodes = list(self.arcs[node]), list(self.arcs[node].values())
            lent_BV[row, tokens] = self.earned_N[nodes] - self.kept_N[nodes]
        return lent_BV

    def after(self, node: int, token: int) -> int:
        return self.arcs[node].get(token, int(self.other_V[token]))


class _Tree:
    """The tree while it is built."""

    def __init__(self, words: WordBoundaries) -> None:
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
        """Add to each node the arcs and boosts of its longest suffix; shorter nodes first."""
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
