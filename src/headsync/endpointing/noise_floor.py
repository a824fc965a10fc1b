"""The noise floor of a stream, and which frames are louder than it.

CTC separates words from other sounds, but not the speaker from voices in the background, which are hardly louder than
the noise floor. The endpointer requires more evidence of such frames before it opens an utterance.

The noise floor is the 10th percentile of the levels of the last ten seconds. A steady noise is not a voice, however
loud it is: where the median is close to the noise floor, a smaller distance is enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from headsync.engine import BoolArray
from headsync.frontend.audio import FloatArray

_FLOOR_FRAMES = 250  # ten seconds
_WORD_FRAMES = 8  # frames before a spike that hold the loudest part of its word
_FEWEST_FRAMES = 10  # below this the noise floor is unknown
_FLOOR, _MEDIAN = 0.1, 0.5  # quantiles of the levels
_SPREAD = 6.0  # times (median - floor) is enough for a frame to be foreground; a steady noise has 0.4 dB, voices 3 dB

_UNKNOWN = np.full(_FLOOR_FRAMES + _WORD_FRAMES, np.nan)


class NoiseFloor(NamedTuple):
    """The levels of the last frames of a stream, in decibels; nan before its beginning."""

    level_T: FloatArray = _UNKNOWN

    def foreground(self, level_T: FloatArray, most_db: float) -> BoolArray:
        """Whether each frame, or one of the _WORD_FRAMES before it, reaches the level of the foreground."""
        all_T = np.concatenate([self.level_T, level_T])
        word_TW = sliding_window_view(all_T[_FLOOR_FRAMES:], _WORD_FRAMES + 1)
        floor_TW = sliding_window_view(all_T[: -_WORD_FRAMES - 1], _FLOOR_FRAMES)
        foreground_T: BoolArray = np.nanmax(word_TW, 1) >= _threshold(floor_TW, most_db)
        return foreground_T

    def add(self, level_T: FloatArray) -> NoiseFloor:
        """The noise floor after more frames."""
        return NoiseFloor(np.concatenate([self.level_T, level_T])[len(level_T) :])


def _threshold(level_TW: FloatArray, most_db: float) -> FloatArray:
    """The lowest foreground level after each row of levels; -inf where the noise floor is unknown."""
    known_T = np.isfinite(level_TW).sum(1)
    rank_T2 = (np.array([_FLOOR, _MEDIAN]) * known_T[:, None]).astype(np.int64)
    ordered_TW = np.sort(level_TW, 1)  # nan comes last
    floor_T, median_T = np.take_along_axis(ordered_TW, rank_T2, 1).T
    threshold_T = floor_T + np.minimum(most_db, _SPREAD * (median_T - floor_T))
    return np.where(known_T < _FEWEST_FRAMES, -np.inf, threshold_T)
