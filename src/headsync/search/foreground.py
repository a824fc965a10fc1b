"""Who speaks to the microphone stands out from the room: how far, by the levels of the frames before.

CTC tells words from other sounds, but not the voice that is meant from others behind it. In a room full of voices
something now and then sounds like a word; it is hardly louder than all the rest. So of a sound that does not stand out
more is asked before it opens an utterance (see `headsync.search.evidence`).

The background is what is left in the pauses of the last ten seconds: a tenth of their frames are quieter. Noise that
does not change is no voice, however loud: from a room that is steady, its middle level hardly above that of the
background, less is enough. Both follow from frames alone, so that cutting the audio changes nothing, and a stream of
days needs no more than these frames.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from headsync.audio import FloatArray
from headsync.engine import BoolArray

BACKGROUND_FRAMES = 250  # ten seconds
WORD_FRAMES = 8  # before the one that speaks of a token, among which are the loudest of its word
FEWEST_FRAMES = 10  # that must have been heard before anything is known of the room
QUIETER, MIDDLE = 0.1, 0.5  # shares of the frames below the level of the background, and below the middle one
RESTLESS = 6.0  # times the way from the one to the other is enough to stand out; a steady noise has 0.4 dB, voices 3

_UNHEARD = np.full(BACKGROUND_FRAMES + WORD_FRAMES, np.nan)


class Background(NamedTuple):
    """The levels of the last frames of a stream, in decibels; nan before its beginning."""

    level_T: FloatArray = _UNHEARD

    def hear(self, level_T: FloatArray, most: float) -> tuple[BoolArray, Background]:
        """Whether each of these frames, or one of those just before it, stands out; `most` decibels always do."""
        if not len(level_T):
            return np.zeros(0, bool), self
        all_T = np.concatenate([self.level_T, level_T])
        word_TW = sliding_window_view(all_T[BACKGROUND_FRAMES:], WORD_FRAMES + 1)
        room_TW = sliding_window_view(all_T[: -WORD_FRAMES - 1], BACKGROUND_FRAMES)
        return np.nanmax(word_TW, 1) >= _bar(room_TW, most), Background(all_T[len(level_T) :].copy())


NOTHING_HEARD = Background()


def _bar(level_TW: FloatArray, most: float) -> FloatArray:
    """The level from which on a sound stands out from each row; any where too little has been heard."""
    heard_T = np.isfinite(level_TW).sum(1)
    rank_T2 = (np.array([QUIETER, MIDDLE]) * heard_T[:, None]).astype(np.int64)
    ordered_TW = np.sort(level_TW, 1)  # nan comes last
    quiet_T, middle_T = np.take_along_axis(ordered_TW, rank_T2, 1).T
    bar_T = quiet_T + np.minimum(most, RESTLESS * (middle_T - quiet_T))
    return np.where(heard_T < FEWEST_FRAMES, -np.inf, bar_T)
