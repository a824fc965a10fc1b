"""CTC prefix scores of a stream: the probability that the speech so far begins with these tokens.

For a prefix g, r^n_t and r^b_t are the log probabilities of having produced g by frame t, ending in its last label or
in blank. Let phi_t be r^b_t(g) where c repeats the last label of g, and logaddexp(r^n_t(g), r^b_t(g)) otherwise. Then

    r^n_t(gc) = logaddexp(r^n_{t-1}(gc), phi_{t-1}) + log p_t(c)
    r^b_t(gc) = logaddexp(r^n_{t-1}(gc), r^b_{t-1}(gc)) + log p_t(blank)
    psi(gc)   = logsumexp over t of phi_{t-1} + log p_t(c)        the speech begins with gc
    r_T(g)    = logaddexp(r^n_T(g), r^b_T(g))                     the speech is g and nothing more

New frames reach a prefix through all its beginnings, so their scores are part of the state. A longer prefix needs the
scores of its parent at all frames, so these are kept. The state is therefore exact, however the frames arrive.

Shapes: B prefixes, L tokens of each, T frames, K candidates, V classes (0 is blank). In a state,
arrays with L have one more entry, for the empty beginning, and arrays with T one more, for the time before frame 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headsync.engine import BoolArray, IntArray
from headsync.engine.state_tree import take_rows
from headsync.frontend.audio import FloatArray
from headsync.lm import Scores

IMPOSSIBLE = -700.0  # stands for the log of 0, such that differences of sums stay exact
NEGLIGIBLE = 1e-26  # frames at which all prefixes are below this share of their best are left out
TINY = 1e-250  # below this a sum of probabilities may have underflowed


class CtcState(NamedTuple):
    """Prefixes of one length after some frames; the rows of a state tree."""

    tokens_BL: IntArray
    label_BL: Scores  # r^n of every beginning at the last frame
    blank_BL: Scores  # r^b
    label_BT: Scores  # r^n of the prefix itself at all frames
    blank_BT: Scores
    psi_B: Scores

    @property
    def frames(self) -> int:
        return int(self.label_BT.shape[1] - 1)


def logsumexp(scores_BK: Scores) -> Scores:
    """The log of the sum of each row; a row of impossible parts is impossible."""
    top_B1: Scores = scores_BK.max(1, initial=-np.inf, keepdims=True)
    top_B1[top_B1 == -np.inf] = 0.0
    sum_B = np.exp(scores_BK - top_B1).sum(1)
    log_B: Scores = np.log(sum_B, out=np.full_like(sum_B, -np.inf), where=sum_B > 0)
    return log_B + top_B1[:, 0]


def start(batch: int) -> CtcState:
    """Empty prefixes before the first frame."""
    never, sure = np.full((batch, 1), -np.inf), np.zeros((batch, 1))
    return CtcState(np.zeros((batch, 0), np.int64), never, sure, never, sure, np.zeros(batch))


def advance(state: CtcState, log_ctc_TV: FloatArray) -> CtcState:
    """The same prefixes after more frames."""
    p_TBL, p_blank_T = _log_p(log_ctc_TV[:, state.tokens_BL]), _log_p(log_ctc_TV[:, 0])
    repeats_BL = _repeats(state.tokens_BL)
    label_TBL, blank_TBL, starts_TBL = np.full((3, len(log_ctc_TV) + 1, *state.label_BL.shape), -np.inf)
    label_TBL[0], blank_TBL[0] = state.label_BL, state.blank_BL
    for t, (p_BL, p_blank) in enumerate(zip(p_TBL, p_blank_T, strict=True)):
        either = np.logaddexp(label_TBL[t], blank_TBL[t])
        starts = starts_TBL[t + 1, :, 1:] = np.where(repeats_BL, blank_TBL[t, :, :-1], either[:, :-1]) + p_BL
        label_TBL[t + 1, :, 1:] = np.logaddexp(label_TBL[t, :, 1:] + p_BL, starts)
        blank_TBL[t + 1] = either + p_blank
    return state._replace(
        label_BL=label_TBL[-1].copy(),  # copies, so that the rest can be freed
        blank_BL=blank_TBL[-1].copy(),
        label_BT=np.concatenate([state.label_BT, label_TBL[1:, :, -1].T], 1),
        blank_BT=np.concatenate([state.blank_BT, blank_TBL[1:, :, -1].T], 1),
        psi_B=np.logaddexp.reduce([state.psi_B, *starts_TBL[1:, :, -1]], axis=0),
    )


def extend(state: CtcState, rows: list[int], tokens_B: IntArray, log_ctc_TV: FloatArray) -> CtcState:
    """Each of the given rows with one token more, on the same frames: the recursions over t, all frames at once.

    With P_t the sum of log p(c) up to t, r^n_t = P_t + logcumsumexp over s <= t of phi_{s-1} - P_{s-1}; r^b_t likewise.
    """
    state = take_rows(state, rows)
    p_BT = _log_p(log_ctc_TV[: state.frames, tokens_B]).T
    p_blank_T = _log_p(log_ctc_TV[: state.frames, 0])
    phi_BT = np.where(_repeated(state, tokens_B[:, None]), state.blank_BT, _either(state))[:, :-1]
    label_BT = _accumulated(phi_BT, p_BT)
    blank_BT = _accumulated(label_BT[:, :-1], p_blank_T)
    return CtcState(
        np.concatenate([state.tokens_BL, tokens_B[:, None]], 1),
        np.concatenate([state.label_BL, label_BT[:, -1:]], 1),
        np.concatenate([state.blank_BL, blank_BT[:, -1:]], 1),
        label_BT,
        blank_BT,
        logsumexp(phi_BT + p_BT),
    )


def whole(state: CtcState) -> Scores:
    """r_T of each prefix (B,)."""
    return np.logaddexp(state.label_BL[:, -1], state.blank_BL[:, -1])


def extensions(state: CtcState, tokens_BK: IntArray, log_ctc_TV: FloatArray, negligible: float = NEGLIGIBLE) -> Scores:
    """psi of each prefix with each of its candidates after it (B, K); meaningless for blank.

    Truncated: frames at which the prefixes are negligible are left out. With `negligible=0` all frames count.
    """
    log_ctc_TV = log_ctc_TV[: state.frames]
    psi_BK = _summed(_either(state)[:, :-1], tokens_BK, log_ctc_TV, negligible)
    if state.tokens_BL.shape[1]:  # a label repeats only after a blank
        again = _summed(state.blank_BT[:, :-1], state.tokens_BL[:, -1:], log_ctc_TV, negligible)
        psi_BK = np.where(_repeated(state, tokens_BK), again, psi_BK)
    return psi_BK


def _summed(phi_BT: Scores, tokens_BK: IntArray, log_ctc_TV: FloatArray, negligible: float) -> Scores:
    """logsumexp over t of phi_{t-1} + log p_t: as a sum of products, and where that is too small by logarithms."""
    top_B1 = phi_BT.max(1, initial=-np.inf, keepdims=True)
    top_B1[top_B1 == -np.inf] = 0.0  # an impossible prefix
    part_BT = np.exp(phi_BT - top_B1)
    near = np.flatnonzero((part_BT > negligible).any(0))
    span = slice(near[0], near[-1] + 1) if len(near) else slice(0)
    sum_BK = _products(part_BT[:, span], tokens_BK, log_ctc_TV[span])
    psi_BK: Scores = top_B1 + np.log(np.maximum(sum_BK, TINY))
    rows, columns = np.nonzero(sum_BK <= TINY)
    if len(rows):
        log_p_RT = _log_p(log_ctc_TV[:, tokens_BK[rows, columns]]).T
        psi_BK[rows, columns] = logsumexp(phi_BT[rows] + log_p_RT)
    return psi_BK


def _products(part_BT: Scores, tokens_BK: IntArray, log_ctc_TV: FloatArray) -> Scores:
    if tokens_BK.shape[1] == log_ctc_TV.shape[1]:  # all classes, in order
        sum_BK: Scores = part_BT @ np.exp(_log_p(log_ctc_TV))
    else:
        p_TBK = np.exp(_log_p(log_ctc_TV[:, tokens_BK]))
        sum_BK = (part_BT[:, None] @ p_TBK.transpose(1, 0, 2))[:, 0]
    return sum_BK


def _accumulated(phi_BT: Scores, p_BT: Scores) -> Scores:
    """r_t = logaddexp(r_{t-1}, phi_{t-1}) + log p_t, with r_0 impossible."""
    sum_BT = np.cumsum(p_BT, -1)
    before_BT = sum_BT - p_BT
    r_BT = np.full((phi_BT.shape[0], phi_BT.shape[1] + 1), -np.inf)
    r_BT[:, 1:] = np.logaddexp.accumulate(phi_BT - before_BT, axis=1) + sum_BT
    return r_BT


def _either(state: CtcState) -> Scores:
    return np.logaddexp(state.label_BT, state.blank_BT)


def _repeated(state: CtcState, tokens_BK: IntArray) -> BoolArray:
    """Where a token equals the last one of its prefix."""
    if not state.tokens_BL.shape[1]:
        return np.zeros(tokens_BK.shape, bool)
    return np.equal(tokens_BK, state.tokens_BL[:, -1:])


def _repeats(tokens_BL: IntArray) -> BoolArray:
    """Where a token equals the one before it."""
    repeats_BL = np.zeros(tokens_BL.shape, bool)
    repeats_BL[:, 1:] = tokens_BL[:, 1:] == tokens_BL[:, :-1]
    return repeats_BL


def _log_p(log_ctc: FloatArray) -> Scores:
    return np.maximum(log_ctc.astype(np.float64), IMPOSSIBLE)
