"""Where the heads looked when a token was written: kept only for those who want to see it.

A hypothesis carries one `Look` for each of its tokens, or None where nobody asked. It holds the frames that matter and
no others, so that its size does not grow with the utterance. The numbers are rounded: they are for the eye.

Shapes: B hypotheses, H heads, T frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headsync.engine import Decoded

DIGITS = 3
LEAST = 0.01  # frames at the border to which no head gives more are left out

LookArray = npt.NDArray[np.object_]  # of Looks, or of None where nobody asked


@dataclass(frozen=True)
class Look:
    """The heads of the highest layer that attends, at one output step."""

    first: int  # frame, counted in the utterance
    weights: tuple[tuple[float, ...], ...]  # of each head, for the frames from the first
    ends: tuple[int, ...]  # frames consumed by each head


def looks(decoded: Decoded, asked: bool) -> LookArray:
    """The look of every row of a step."""
    look_B = np.full(len(decoded.ready_B), None, dtype=object)
    if asked:
        for row, (weights_HT, end_NH) in enumerate(zip(decoded.weights_BHT, decoded.end_BNH, strict=True)):
            look_B[row] = _look(weights_HT, tuple(end_NH[-1].tolist()))
    return look_B


def _look(weights_HT: npt.NDArray[np.floating], ends: tuple[int, ...]) -> Look:
    seen = np.flatnonzero(weights_HT.max(0) > LEAST)
    first, last = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
    weights = np.round(weights_HT[:, first:last].astype(np.float64), DIGITS)
    return Look(first, tuple(map(tuple, weights.tolist())), ends)
