"""Cost of decoding (section 5.3): the share of frames that the heads consumed, and what stopped them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headsync.engine import IntArray, Window
from headsync.events import Stops


def cost_ratio(consumed: int, *, layers: int, heads: int, steps: int, frames: int) -> float:
    """The cost ratio r = sum_l sum_h sum_i s_i^{h,l} / (N_d H L T), eq. (10).

    `consumed` is the numerator: the frames that all heads of all layers consumed in all output steps. `frames` is T,
    the encoder frames of the utterance. An utterance without steps has r = 0.
    """
    everything = layers * heads * steps * frames
    assert 0 <= consumed <= everything, "heads consumed more frames than the utterance has"
    return consumed / everything if everything else 0.0


def sum_stops(*counts: Sequence[int]) -> Stops:
    return Stops(*map(sum, zip(*counts, strict=True)))


def count_stops(end_BNH: IntArray, window: Window) -> IntArray:
    """Count the heads of all layers that stopped by the threshold, the limit (M) or the end of the utterance, (B, 3).

    A head that crosses its threshold on the last frame of the limit counts as stopped by the limit.
    """
    limit_B, frames_B, final_B = (part[:, None, None] for part in window)
    by_limit = end_BNH >= limit_B
    by_end = ~by_limit & ((final_B & (end_BNH >= frames_B)) | (end_BNH == 0))  # 0: no boundary was left to find
    counts = [part.sum((1, 2)) for part in (~by_limit & ~by_end, by_limit, by_end)]
    return np.stack(counts, 1)
