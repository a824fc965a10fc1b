"""Viterbi search for the pitch of each frame: a path through the lags that correlates well and does not jump.

A frame is decided after `decision_frames` further frames. The state of the search is a value.

Shapes: F frames, S lags of the grid.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headsync.frontend.audio import FloatArray
from headsync.frontend.pitch_correlation import GRID_STEP, LAGS_S, Indices

_SOFT_LOWEST_HERTZ = 10.0  # long lags cost more: a correlation counts 1 - lag times this
_JUMP_COST = 0.1 * math.log(1.0 + GRID_STEP) ** 2  # of one step of the grid; grows with the square of the steps
_COARSE = 16  # distance between the states for which all transitions are compared

_STATES = np.arange(len(LAGS_S))
_LAG_CREDIT_S = (1.0 - _SOFT_LOWEST_HERTZ * LAGS_S).astype(np.float32)

_NO_JUMP = len(LAGS_S) + _COARSE  # where the costs of jumps are zero
_JUMP_COSTS = (_JUMP_COST * np.square(np.arange(-_NO_JUMP, _NO_JUMP + 1))).astype(np.float32)
_COARSE_COSTS = np.stack([_JUMP_COSTS[_NO_JUMP - state :][: len(LAGS_S)] for state in _STATES[::_COARSE]])


class PathSearch(NamedTuple):
    """The state of the search: the frames that are not decided yet."""

    costs_S: FloatArray  # of the best path to each state
    back_FS: tuple[Indices, ...]  # the state before each state


def extend_path(for_path_FS: FloatArray, search: PathSearch, decision_frames: int) -> tuple[list[int], PathSearch]:
    """Continue the search by some frames; returns the states that this decides, and the new state."""
    decided, (costs_S, undecided), buffers = [], search, Buffers.make()
    for local_S in 1.0 - for_path_FS * _LAG_CREDIT_S:
        back_S, costs_S = _transit(costs_S, buffers)
        costs_S += local_S
        costs_S -= costs_S.min()  # keeps the precision in an endless stream
        undecided = (*undecided, back_S)
        if len(undecided) > decision_frames:
            decided.append(best_path(costs_S, undecided)[0])
            undecided = undecided[1:]
    return decided, PathSearch(costs_S, undecided)


class Buffers(NamedTuple):
    """Memory that is reused in every frame; allocating it for each frame would take half the time."""

    padded: FloatArray  # costs, with infinity on either side
    candidates: FloatArray

    @classmethod
    def make(cls) -> Buffers:
        padded = np.full(len(LAGS_S) + 2 * _NO_JUMP, np.inf, np.float32)
        return cls(padded, np.empty(len(LAGS_S) * len(_JUMP_COSTS), np.float32))


def _transit(costs_S: FloatArray, buffers: Buffers) -> tuple[Indices, FloatArray]:
    """The best state before each state, and the cost to come from there.

    Jumps cost their square, so the best predecessor never falls as the state rises. The predecessors of every 16th
    state, found among all states, therefore bound those of the states between.
    """
    jumps = (costs_S + _COARSE_COSTS).argmin(axis=1) - _STATES[::_COARSE]
    below, above = max(_COARSE - int(jumps.min()), 0), max(_COARSE + int(jumps.max()), 0)
    padded, shape = buffers.padded, (len(costs_S), below + 1 + above)
    padded[_NO_JUMP : _NO_JUMP + len(costs_S)] = costs_S
    first = (_NO_JUMP - below) * padded.itemsize
    near_SS = np.ndarray(shape, np.float32, padded, first, strides=2 * padded.strides)
    candidates_SS = buffers.candidates[: shape[0] * shape[1]].reshape(shape)
    np.add(near_SS, _JUMP_COSTS[_NO_JUMP - below : _NO_JUMP + above + 1], out=candidates_SS)
    best_S = candidates_SS.argmin(axis=1)
    return best_S + (_STATES - below), candidates_SS[_STATES, best_S]


def best_path(costs_S: FloatArray, back_FS: tuple[Indices, ...]) -> list[int]:
    """The states of the undecided frames on the currently best path."""
    state = int(costs_S.argmin())
    path = [state]
    for back_S in back_FS[:0:-1]:
        path.append(state := int(back_S[state]))
    return path[::-1]
