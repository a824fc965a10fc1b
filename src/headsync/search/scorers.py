"""What the search adds up: anything that scores the next token of a hypothesis.

    joint = (1 - w) decoder + w CTC + lm_weight language model + length_bonus tokens + hotwords

The decoder and CTC depend on frames, the others on tokens alone. What the decoder says about the end may count less
(`Joint.decoder`). Shapes: B hypotheses, V classes (0 is blank).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headsync.engine import IntArray, State

Scores: TypeAlias = npt.NDArray[np.float64]  # log probabilities


def logsumexp(scores_BK: Scores) -> Scores:
    """The log of the sum of each row; impossible parts count nothing, and a row of them is impossible."""
    top_B1: Scores = scores_BK.max(1, initial=-np.inf, keepdims=True)
    top_B1[top_B1 == -np.inf] = 0.0
    sum_B = np.exp(scores_BK - top_B1).sum(1)
    log_B: Scores = np.log(sum_B, out=np.full_like(sum_B, -np.inf), where=sum_B > 0)
    return log_B + top_B1[:, 0]


class LanguageModel(Protocol):
    """How likely a token is after those before it; immutable, its state a tree of arrays, batch first."""

    def start(self, batch: int) -> State:
        """Before the first token."""

    def step(self, tokens_B: IntArray, state: State) -> tuple[Scores, State]:
        """After the last token of each row (<sos> at first): log p of the next (B, V), <eos> included, blank -inf."""
