"""The reference engine with a memory: what every head attended to in each output step, for looking at afterwards."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch

from headsync.attention.base import Attended
from headsync.attention.cross import CrossAttention
from headsync.audio import FloatArray
from headsync.engine import Decoded, IntArray, Memory, State, Window
from headsync.engine.torch import TorchEngine
from headsync.nn.model import Model


class Looked(NamedTuple):
    """One output step of one hypothesis. Layers without cross-attention are left out."""

    weights_NHT: FloatArray
    end_NH: IntArray  # frames consumed


class TracingEngine(TorchEngine):
    """Decodes as `TorchEngine` does, and remembers every step that was decided.

    A step belongs to the tokens before it and to the utterance in which they were written. To know them, the state of a
    hypothesis carries them along: the number of the utterance, then the tokens, the first of them <sos>.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(deepcopy(model))
        self.steps: dict[tuple[int, ...], Looked] = {}  # by utterance and tokens before the step, without <sos>
        self._utterances = 0
        self._outcomes: list[Attended] = []
        for part in self.model.decoder.modules():
            if isinstance(part, CrossAttention):
                part.mechanism.step = self._watched(part.mechanism.step)  # type: ignore[method-assign]

    def start_decoder(self, batch: int) -> State:
        self._utterances += 1
        return (super().start_decoder(batch), np.full((batch, 1), self._utterances))

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        inner, before_BL = state
        self._outcomes.clear()
        decoded = super().decode(tokens_B, memory, inner, window)
        written_BL = np.concatenate([before_BL, tokens_B[:, None]], 1)
        for row in np.flatnonzero(decoded.ready_B).tolist():
            utterance, _, *tokens = written_BL[row].tolist()
            self.steps[utterance, *tokens] = self._looked(row)
        return decoded._replace(state=(decoded.state, written_BL))

    def _looked(self, row: int) -> Looked:
        weights = torch.stack([outcome.weights_BHT[row] for outcome in self._outcomes])
        return Looked(weights.numpy(), torch.stack([outcome.end_BH[row] for outcome in self._outcomes]).numpy())

    def _watched(self, step: Callable[..., Attended]) -> Callable[..., Attended]:
        def watched(*arguments: Any) -> Attended:
            self._outcomes.append(step(*arguments))
            return self._outcomes[-1]

        return watched
