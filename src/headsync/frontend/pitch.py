"""Pitch: three features beside the 80 log-mel energies, one row for each of their frames.

The algorithm is that of Ghahremani et al. (2014), known from Kaldi. `pitch_correlation` correlates each frame with the
audio around it; here a Viterbi search finds a smooth path of pitch. Every frame has a pitch, voiced or not.
The features are the voicing, the logarithm of pitch minus its mean nearby, and the slope of that logarithm.

In a stream, a frame is decided after `decision_frames` further frames, the mean uses `right_frames` future frames, and
the mean energy is that of the stream so far. No noise is added to the slope.
State is a value, and the order of every sum is independent of how the audio is cut: whole and stream agree bit for bit.

Shapes: F frames, L lags in samples of 4 kHz, T taps of the interpolation between lags.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headsync.frontend.audio import SAMPLE_RATE, FloatArray
from headsync.frontend.frame_rate import FRAME_SAMPLES, HOP_SAMPLES, NUM_PITCH
from headsync.frontend.pitch_correlation import (
    GRID_STEP,
    LAGS_S,
    NUM_LAGS,
    SPAN_SAMPLES,
    Doubles,
    Indices,
    SlowAudio,
    correlate,
    correlation_at,
    interpolate,
    windows,
)

_DELTA_FRAMES = 2  # on either side
_PIECE_SAMPLES = 30 * SAMPLE_RATE  # bounds the memory for a long recording

# The path search.
_SOFT_LOWEST_HERTZ = 10.0  # long lags cost more: a correlation counts 1 - lag times this
_JUMP_COST = 0.1 * math.log(1.0 + GRID_STEP) ** 2  # of one step of the grid; grows with the square of the steps
_COARSE = 16  # distance between the states for which all transitions are compared

_STATES = np.arange(len(LAGS_S))
_LAG_CREDIT_S = (1.0 - _SOFT_LOWEST_HERTZ * LAGS_S).astype(np.float32)

_NO_JUMP = len(LAGS_S) + _COARSE  # where the costs of jumps are zero
_JUMP_COSTS = (_JUMP_COST * np.square(np.arange(-_NO_JUMP, _NO_JUMP + 1))).astype(np.float32)
_COARSE_COSTS = np.stack([_JUMP_COSTS[_NO_JUMP - state :][: len(LAGS_S)] for state in _STATES[::_COARSE]])


class Track(NamedTuple):
    """Pitch and correlation at that pitch, frame by frame."""

    log_pitch: Doubles
    correlation: Doubles

    @property
    def hertz(self) -> Doubles:
        return np.exp(self.log_pitch)

    @property
    def voicing(self) -> Doubles:
        """The probability that a frame is voiced: a published fit to the correlation."""
        c = np.minimum(np.abs(self.correlation), 1.0)
        odds = -5.2 + 5.4 * np.exp(7.5 * (c - 1.0)) + 4.8 * c - 2.0 * np.exp(-10.0 * c) + 4.2 * np.exp(20.0 * (c - 1.0))
        return 1.0 / (1.0 + np.exp(-odds))


class PitchState(NamedTuple):
    slow: SlowAudio
    search: PathSearch
    voicing_FL: Doubles  # correlations of the frames that are not decided yet
    frames: int  # that have been searched
    track: Track  # decided frames: those that later means need, and those that wait for frames to come
    past: int  # the number of these that have been returned


@dataclass(frozen=True)
class Pitch:
    """Pitch features as a stream; the context of a frame is given in frames of 10 ms."""

    decision_frames: int = 10
    left_frames: int = 75
    right_frames: int = 4

    def __post_init__(self) -> None:
        assert self.decision_frames >= 0, "a frame is decided at its end or later"
        assert min(self.left_frames, self.right_frames) >= _DELTA_FRAMES, "the slope needs two frames on either side"

    @property
    def delay_frames(self) -> int:
        """Frames after its own that a row of features waits for, besides the 20 ms of the longest lag."""
        return self.decision_frames + self.right_frames

    @property
    def delay_samples(self) -> int:
        """Samples after the end of its frame that a row waits for: those frames, the lag, and the filter."""
        return self.delay_frames * HOP_SAMPLES + SPAN_SAMPLES - FRAME_SAMPLES

    def start(self) -> PitchState:
        search = PathSearch(np.zeros(len(LAGS_S), np.float32), ())
        track = Track(np.zeros(0), np.zeros(0))
        return PitchState(SlowAudio.start(), search, np.zeros((0, NUM_LAGS)), 0, track, 0)

    def step(self, samples: FloatArray, state: PitchState, final: bool = False) -> tuple[FloatArray, PitchState]:
        """The rows (f, 3) that these samples decide, and the state; `final`: the audio ends here."""
        track, state = self._tracked(samples, state, final)
        count = max(0, len(track.log_pitch) - state.past - (0 if final else self.right_frames))
        rows = _features(track, state.past, count, self.left_frames, self.right_frames)
        if final:
            return rows, self.start()
        past = state.past + count
        dropped = max(0, past - self.left_frames)
        kept = Track(track.log_pitch[dropped:].copy(), track.correlation[dropped:].copy())
        return rows, state._replace(track=kept, past=past - dropped)

    def whole(self, samples: FloatArray) -> FloatArray:
        """Every row of a whole utterance, (f, 3): as many as there are frames of log-mel energies."""
        rows, state = [np.zeros((0, NUM_PITCH), np.float32)], self.start()
        for piece, final in _pieces(samples):
            new, state = self.step(piece, state, final)
            rows.append(new)
        return np.concatenate(rows)

    def track(self, samples: FloatArray) -> Track:
        """Pitch and correlation of every frame of a whole utterance, before they become features."""
        state = self.start()
        for piece, final in _pieces(samples):
            track, state = self._tracked(piece, state, final)
            state = state._replace(track=track)
        return state.track

    def _tracked(self, samples: FloatArray, state: PitchState, final: bool) -> tuple[Track, PitchState]:
        """All decided frames that the state holds, with those that these samples decide."""
        slow = state.slow.push(samples, final)
        count = slow.new_frames(state.frames, final)
        for_path_FL, for_voicing_FL = correlate(slow, state.frames, count)
        decided, search = extend_path(interpolate(for_path_FL), state.search, self.decision_frames)
        if final and search.back_FS:
            decided += best_path(*search)
        voicing_FL = np.concatenate([state.voicing_FL, for_voicing_FL])
        track = _joined(state.track, _read(decided, voicing_FL))
        frames, rest_FL = state.frames + count, voicing_FL[len(decided) :].copy()
        return track, state._replace(slow=slow.drop(frames), search=search, voicing_FL=rest_FL, frames=frames)


def _pieces(samples: FloatArray) -> Iterator[tuple[FloatArray, bool]]:
    for begin in range(0, max(len(samples), 1), _PIECE_SAMPLES):
        yield samples[begin : begin + _PIECE_SAMPLES], begin + _PIECE_SAMPLES >= len(samples)


def _read(states: list[int], voicing_FL: Doubles) -> Track:
    """Pitch and correlation of frames whose states are decided."""
    chosen = np.array(states, dtype=np.intp)
    return Track(-np.log(LAGS_S[chosen]), correlation_at(chosen, voicing_FL))


def _joined(first: Track, second: Track) -> Track:
    return Track(*(np.concatenate(both) for both in zip(first, second, strict=True)))


def _features(track: Track, past: int, count: int, left: int, right: int) -> FloatArray:
    """Rows for `count` frames after `past` earlier ones: voicing, pitch minus its mean, slope of pitch."""
    if count == 0:
        return np.zeros((0, NUM_PITCH), np.float32)
    missing = (left - past, max(0, right - (len(track.log_pitch) - past - count)))
    weights = np.pad(track.voicing, missing)  # missing frames have no weight
    pitch = np.pad(track.log_pitch, missing, mode="edge")  # and no slope
    means = _window_sums(weights * pitch, left + 1 + right, count) / _window_sums(weights, left + 1 + right, count)
    slope = np.zeros(count)
    for frames in range(1, _DELTA_FRAMES + 1):
        slope += frames * (pitch[left + frames :][:count] - pitch[left - frames :][:count])
    slope /= 2 * sum(frames * frames for frames in range(1, _DELTA_FRAMES + 1))
    correlation = np.clip(track.correlation[past : past + count], -1.0, 1.0)
    voiced = np.power(1.0001 - correlation, 0.15) - 1.0
    rows = np.stack([2.0 * voiced, 2.0 * (pitch[left : left + count] - means), 10.0 * slope], axis=1)
    return rows.astype(np.float32)


def _window_sums(values: Doubles, width: int, count: int) -> Doubles:
    each = windows(values, width)[:count].copy()  # each is summed alone, in one order
    return np.asarray(each.sum(axis=1))


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
