"""Language models: what the search adds to the scores of decoder and CTC.

Shapes: B hypotheses, V classes (0 is blank).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headsync.engine import IntArray, State

Scores: TypeAlias = npt.NDArray[np.float64]  # log probabilities


class LanguageModel(Protocol):
    """The probability of a token after those before it; immutable, its state a tree of arrays, batch first."""

    def start(self, batch: int) -> State:
        """The state before the first token."""

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        """After the last token of each row (<sos> at first): log p of the next (B, V), <eos> included, blank -inf."""
