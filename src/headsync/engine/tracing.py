"""The reference engine, recording what every head attended to in each output step."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch

from headsync.attention.base import Attended
from headsync.attention.cross_attention import CrossAttention
from headsync.engine import Decoded, IntArray, Memory, State, Window
from headsync.engine.torch import TorchEngine
from headsync.frontend.audio import FloatArray
from headsync.nn.model import Model


class TracedStep(NamedTuple):
    """One output step of one hypothesis. Layers without cross-attention are left out."""

    weights_NHT: FloatArray
    end_NH: IntArray  # frames consumed


class TracingEngine(TorchEngine):
    """Decodes as `TorchEngine` does, and records every decided step.

    A step is identified by its utterance and the tokens before it. The state of a hypothesis therefore includes the
    number of the utterance and the tokens, beginning with <sos>.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(deepcopy(model))
        self.steps: dict[tuple[int, ...], TracedStep] = {}  # by utterance and tokens before the step, without <sos>
        self._utterances = 0
        self._outcomes: list[Attended] = []
        for part in self.model.decoder.modules():
            if isinstance(part, CrossAttention):
                part.mechanism.step = self._recorded(part.mechanism.step)  # type: ignore[method-assign]

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        self._utterances += 1
        return (super().start_decoder(batch, threshold), np.full((batch, 1), self._utterances))

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        inner, before_BL = state
        self._outcomes.clear()
        decoded = super().decode(tokens_B, memory, inner, window)
        written_BL = np.concatenate([before_BL, tokens_B[:, None]], 1)
        for row in np.flatnonzero(decoded.ready_B).tolist():
            utterance, _, *tokens = written_BL[row].tolist()
            self.steps[utterance, *tokens] = self._traced_step(row)
        return decoded._replace(state=(decoded.state, written_BL))

    def _traced_step(self, row: int) -> TracedStep:
        weights = torch.stack([outcome.weights_BHT[row] for outcome in self._outcomes])
        return TracedStep(weights.numpy(), torch.stack([outcome.end_BH[row] for outcome in self._outcomes]).numpy())

    def _recorded(self, step: Callable[..., Attended]) -> Callable[..., Attended]:
        def recorded(*arguments: Any) -> Attended:
            self._outcomes.append(step(*arguments))
            return self._outcomes[-1]

        return recorded
