"""Attention traces: the frames that the heads attended to for each token, for streams that report them.

A hypothesis carries one `AttentionTrace` for each of its tokens. It holds only the frames with weight, so its
size does not grow with the utterance. The weights are rounded, for display.

Shapes: B hypotheses, H heads, T frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headsync.engine import Decoded

DIGITS = 3
LEAST = 0.01  # frames at the edges whose weights are all at most this are left out

TraceArray = npt.NDArray[np.object_]  # of AttentionTraces, or of None


@dataclass(frozen=True)
class AttentionTrace:
    """The heads of the highest layer that attends, at one output step."""

    first: int  # frame, counted in the utterance
    weights: tuple[tuple[float, ...], ...]  # of each head, for the frames from the first
    ends: tuple[int, ...]  # frames consumed by each head


def traces(decoded: Decoded, wanted: bool) -> TraceArray:
    """The trace of every row of a step; None if not wanted."""
    trace_B = np.full(len(decoded.ready_B), None, dtype=object)
    if wanted:
        for row, (weights_HT, end_NH) in enumerate(zip(decoded.weights_BHT, decoded.end_BNH, strict=True)):
            trace_B[row] = _trace(weights_HT, tuple(end_NH[-1].tolist()))
    return trace_B


def _trace(weights_HT: npt.NDArray[np.floating], ends: tuple[int, ...]) -> AttentionTrace:
    found = np.flatnonzero(weights_HT.max(0) > LEAST)
    first, last = (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
    weights = np.round(weights_HT[:, first:last].astype(np.float64), DIGITS)
    return AttentionTrace(first, tuple(map(tuple, weights.tolist())), ends)
