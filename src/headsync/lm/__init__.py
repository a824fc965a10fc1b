"""Language models, whose scores the search adds to those of decoder and CTC.

Shapes: B hypotheses, V classes (0 is blank).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headsync.engine import IntArray, State

Scores: TypeAlias = npt.NDArray[np.float64]  # log probabilities


class LanguageModel(Protocol):
    """The probability of a token given those before it; immutable, its state is a tree of arrays, batch first."""

    def start(self, batch: int) -> State:
        """The state before the first token."""

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        """Log p (B, V) of the next token, given the last token of each row (<sos> at first); the blank has -inf."""
