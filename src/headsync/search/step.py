"""An output step of a beam on its way: answers that are decided are kept, and only those who wait ask again."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np

from headsync.audio import FloatArray
from headsync.engine import NO_LIMIT, Decoded, IntArray, State, Window
from headsync.search.look import LookArray, looks
from headsync.search.scorers import Scores
from headsync.streaming import take_rows

S = TypeVar("S")


class Answers(NamedTuple):
    """Decided steps of some hypotheses."""

    row_B: IntArray  # which of the live ones
    log_p_BV: FloatArray
    end_BNH: IntArray
    state: State
    searched_B: IntArray  # up to here it would have been pointless to look further
    seen_B: IntArray  # frames on which the answer rests, and the evidence for the step
    look_B: LookArray


class Step(NamedTuple):
    """What is known of the next token of every live hypothesis."""

    answers: Answers | None = None  # of those that are decided
    language_BV: Scores | None = None  # of all
    language: State | None = None  # after the tokens so far

    def waiting(self, live: int) -> list[int]:
        """Rows that have no answer yet."""
        decided = set() if self.answers is None else set(self.answers.row_B.tolist())
        return [row for row in range(live) if row not in decided]

    def heard(self, answers: Answers) -> Step:
        """With more answers."""
        if self.answers is None:
            return self._replace(answers=answers)
        both = join_rows(self.answers, answers)
        return self._replace(answers=take_rows(both, np.argsort(both.row_B).tolist()))

    def without(self, rows: IntArray) -> Step:
        """These hypotheses have to ask again."""
        assert self.answers is not None
        kept = np.flatnonzero(~np.isin(self.answers.row_B, rows)).tolist()
        return self._replace(answers=take_rows(self.answers, kept) if kept else None)


def answers(rows: list[int], spikes: list[int], decoded: Decoded, window: Window, looking: bool = False) -> Answers:
    """The decided ones among the rows that were asked; the evidence for each was at a frame of `spikes`."""
    seen_B = np.maximum(decoded.end_BNH.max((1, 2)), np.array(spikes) + 1)
    searched_B = np.where(window.limit_B < NO_LIMIT, window.limit_B, seen_B)
    rest = decoded.log_p_BV, decoded.end_BNH, decoded.state, searched_B, seen_B, looks(decoded, looking)
    found = Answers(np.array(rows), *rest)
    ready = np.flatnonzero(decoded.ready_B).tolist()
    return found if len(ready) == len(rows) else take_rows(found, ready)


def rows_of(tree: S | None, rows: list[int]) -> S | None:
    """The rows of a state, if there is one."""
    return None if tree is None else take_rows(tree, rows)


def join_rows(*trees: S) -> S:
    """The rows of several state trees of one shape, one after the other."""
    nodes: Any = trees
    if hasattr(nodes[0], "joined"):  # a leaf that knows how
        return nodes[0].joined(nodes)  # type: ignore[no-any-return]
    if hasattr(nodes[0], "shape"):
        return np.concatenate(nodes)  # type: ignore[return-value]
    parts = [join_rows(*part) for part in zip(*nodes, strict=True)]
    return type(nodes[0])(*parts) if hasattr(nodes[0], "_fields") else type(nodes[0])(parts)  # type: ignore[no-any-return]
