"""CTC prefix scores: how probable is it that the speech so far begins with these tokens?

For a prefix g, r^n_t and r^b_t are the log probabilities of having produced g by frame t, ending in its last label or
in blank. Let phi_t be r^b_t(g) where c repeats the last label of g, and logaddexp(r^n_t(g), r^b_t(g)) otherwise. Then

    psi(gc) = logsumexp over t of phi_{t-1} + log p_t(c)          the speech begins with gc
    r_T(g)  = logaddexp(r^n_T(g), r^b_T(g))                       the speech is g and nothing more

Only frames that have arrived are ever used. Shapes: B prefixes of one length L, T frames, V classes (0 is blank).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headsync.audio import FloatArray
from headsync.engine import IntArray

Scores = npt.NDArray[np.float64]


class PrefixScores(NamedTuple):
    """Log probabilities of prefixes of one length."""

    psi_B: Scores  # of the prefixes themselves
    psi_BV: Scores  # of the prefixes extended by each class; meaningless for blank
    whole_B: Scores  # of the prefixes being all there is


def prefix_scores(tokens_BL: IntArray, log_ctc_TV: FloatArray) -> PrefixScores:
    """Exact scores on the frames that there are."""
    log_p = log_ctc_TV.astype(np.float64)
    label_BT, blank_BT, psi_B = _forward(tokens_BL, log_p)
    either_BT = np.logaddexp(label_BT, blank_BT)
    phi_BTV = np.repeat(either_BT[:, :-1, None], log_p.shape[1], 2)
    if tokens_BL.shape[1]:  # a label follows itself only after a blank
        rows = np.arange(len(tokens_BL))
        phi_BTV[rows, :, tokens_BL[:, -1]] = blank_BT[:, :-1]
    return PrefixScores(psi_B, np.logaddexp.reduce(phi_BTV + log_p, axis=1), either_BT[:, -1])


def _forward(tokens_BL: IntArray, log_p_TV: Scores) -> tuple[Scores, Scores, Scores]:
    """r^n and r^b of the prefixes at t = -1, 0, ... T-1, and their own psi.

    All their beginnings are carried along together, from the empty one (position 0) to the prefix itself.
    """
    (batch, length), frames = tokens_BL.shape, len(log_p_TV)
    repeats_BL = np.pad(tokens_BL[:, 1:] == tokens_BL[:, :-1], ((0, 0), (min(1, length), 0)))
    label, blank = np.full((2, batch, length + 1), -np.inf)
    blank[:, 0] = 0.0
    label_BT, blank_BT = np.full((2, batch, frames + 1), -np.inf)
    label_BT[:, 0], blank_BT[:, 0] = label[:, -1], blank[:, -1]
    psi_B = np.full(batch, -np.inf if length else 0.0)
    for t in range(frames):
        p_BL, either = log_p_TV[t, tokens_BL], np.logaddexp(label, blank)
        starts = np.where(repeats_BL, blank[:, :-1], either[:, :-1]) + p_BL
        label[:, 1:] = np.logaddexp(label[:, 1:] + p_BL, starts)
        blank = either + log_p_TV[t, 0]
        label_BT[:, t + 1], blank_BT[:, t + 1] = label[:, -1], blank[:, -1]
        if length:
            psi_B = np.logaddexp(psi_B, starts[:, -1])
    return label_BT, blank_BT, psi_B
