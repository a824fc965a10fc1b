"""An output step of a beam in progress.

Online attention decides the step of some hypotheses before that of others. Decided answers are kept; only undecided
hypotheses are computed again when more frames have arrived.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from headsync.decoding.attention_trace import TraceArray, traces
from headsync.decoding.cost import count_stops
from headsync.engine import NO_LIMIT, Decoded, IntArray, State, Window
from headsync.engine.state_tree import join_rows, take_rows
from headsync.frontend.audio import FloatArray
from headsync.lm import Scores

S = TypeVar("S")


class Answers(NamedTuple):
    """Decided answers of the decoder to some hypotheses."""

    row_B: IntArray  # the hypothesis, among the live ones
    log_p_BV: FloatArray
    end_BNH: IntArray
    state: State
    exhausted_B: IntArray  # if the hypothesis prefers <eos>, the frames below this contain no further token
    used_B: IntArray  # frames that the answer depends on, the spike for the step included
    trace_B: TraceArray
    stops_B3: IntArray  # heads that stopped by the threshold, the limit, the end


class PendingStep(NamedTuple):
    """The scores of the next token that are known so far, for every live hypothesis."""

    answers: Answers | None = None  # of the decided hypotheses
    language_BV: Scores | None = None  # of all hypotheses
    language: State | None = None  # after the tokens so far

    def waiting(self, live: int) -> list[int]:
        """The hypotheses that have no answer yet."""
        decided = set() if self.answers is None else set(self.answers.row_B.tolist())
        return [row for row in range(live) if row not in decided]

    def with_answers(self, answers: Answers) -> PendingStep:
        if self.answers is None:
            return self._replace(answers=answers)
        both = join_rows(self.answers, answers)
        return self._replace(answers=take_rows(both, np.argsort(both.row_B).tolist()))

    def without_answers(self, rows: IntArray) -> PendingStep:
        """Without the answers to these hypotheses, which are computed again."""
        assert self.answers is not None
        kept = np.flatnonzero(~np.isin(self.answers.row_B, rows)).tolist()
        return self._replace(answers=take_rows(self.answers, kept) if kept else None)

    def only(self, rows: list[int]) -> PendingStep:
        """The scores of these hypotheses, all of them decided."""
        assert self.answers is not None
        answers = take_rows(self.answers, np.searchsorted(self.answers.row_B, rows).tolist())
        language_BV = None if self.language_BV is None else self.language_BV[rows]
        return PendingStep(answers._replace(row_B=np.arange(len(rows))), language_BV, rows_of(self.language, rows))


def decided_answers(
    rows: list[int], spikes: list[int], decoded: Decoded, window: Window, trace: bool = False
) -> Answers:
    """The decided answers to some hypotheses; `spikes` holds the frame of the spike for the step of each, or -1."""
    used_B = np.maximum(decoded.end_BNH.max((1, 2)), np.array(spikes) + 1)
    exhausted_B = np.where(window.limit_B < NO_LIMIT, window.limit_B, used_B)
    every = Answers(
        np.array(rows),
        decoded.log_p_BV,
        decoded.end_BNH,
        decoded.state,
        exhausted_B,
        used_B,
        traces(decoded, trace),
        count_stops(decoded.end_BNH, window),
    )
    ready = np.flatnonzero(decoded.ready_B).tolist()
    return every if len(ready) == len(rows) else take_rows(every, ready)


def rows_of(tree: S | None, rows: list[int]) -> S | None:
    """Some rows of a state; None without a state."""
    return None if tree is None else take_rows(tree, rows)
