"""Pitch: three features beside the 80 log-mel energies, one row for each of their frames.

The algorithm is that of Ghahremani et al. (2014), known from Kaldi: the sound is filtered and brought to 4 kHz; a frame
of 25 ms is correlated with itself at lags of 400 to 50 Hz; a Viterbi search over a grid of lags, even in the logarithm
of pitch, finds a path that correlates well and does not jump. Each frame has a pitch, voiced or not. The features are
how voiced it is, the logarithm of pitch less its mean nearby, and the slope of that logarithm.

What a stream needs is put in place of what needs the whole: a frame's pitch is decided when `decision_frames` more have
been seen, the mean reaches `right_frames` ahead, and the mean energy is that of the stream so far. No noise is added to
the slope. State is a value, and every sum runs in an order that does not depend on how the sound is cut: whole and
stream agree bit for bit.

Shapes: F frames, L lags in samples of 4 kHz, S lags of the grid, T taps of the interpolation between lags.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headsync.audio import SAMPLE_RATE, FloatArray
from headsync.framing import FRAME_SAMPLES, HOP_SAMPLES, NUM_PITCH

LOWEST_HERTZ, HIGHEST_HERTZ = 50.0, 400.0

Doubles = npt.NDArray[np.float64]
States = npt.NDArray[np.intp]

_SLOW_RATE = 4_000
_STRIDE = SAMPLE_RATE // _SLOW_RATE
_WINDOW, _HOP = FRAME_SAMPLES // _STRIDE, HOP_SAMPLES // _STRIDE
_GRID_STEP = 0.005  # of pitch, relative
_BALLAST = 7000.0  # makes quiet frames correlate less, so that the path runs straight through them
_SOFT_LOWEST_HERTZ = 10.0  # long lags cost more: 1 - lag times this is what a correlation counts
_JUMP_COST = 0.1 * math.log(1.0 + _GRID_STEP) ** 2  # of one step of the grid, squared with their number
_HALF_A_STEP = 2.0**-16  # of 16 bits: noise of this amplitude is always there, so that silence correlates with nothing
_DELTA_FRAMES = 2  # on either side
_PIECE_SAMPLES = 30 * SAMPLE_RATE  # bounds the memory that a long recording takes
_COARSE = 16  # states between those for which all transitions are looked at


def _windowed_sinc(seconds: Doubles, cutoff_hertz: float, zeros: int) -> Doubles:
    """An ideal low-pass filter, ended by a Hann window after so many zeros."""
    half_width = zeros / (2.0 * cutoff_hertz)
    hann = np.where(np.abs(seconds) < half_width, 0.5 + 0.5 * np.cos(np.pi * seconds / half_width), 0.0)
    return 2.0 * cutoff_hertz * np.sinc(2.0 * cutoff_hertz * seconds) * hann


def _grid() -> Doubles:
    """The lags that a path can take, in seconds."""
    count = int(math.log(HIGHEST_HERTZ / LOWEST_HERTZ) / math.log(1.0 + _GRID_STEP)) + 1
    return np.power(1.0 + _GRID_STEP, np.arange(count, dtype=np.float64)) / HIGHEST_HERTZ


_LOW_PASS = _windowed_sinc(np.arange(-7, 8) / SAMPLE_RATE, 1_000.0, zeros=1) / SAMPLE_RATE
_REACH = len(_LOW_PASS) // 2

_LAGS_S = _grid()
_STATES = np.arange(len(_LAGS_S))
_FIRST_LAG = math.ceil(_SLOW_RATE / HIGHEST_HERTZ - 2.5)
_LAST_LAG = math.floor(_SLOW_RATE / LOWEST_HERTZ + 2.5)
_NUM_LAGS = _LAST_LAG - _FIRST_LAG + 1
_FULL = _WINDOW + _LAST_LAG  # samples of 4 kHz that a frame looks at
_ONES = np.ones(_WINDOW)
_NUM_TAPS = 10
_FIRST_TAPS_S = np.clip(np.ceil(_LAGS_S * _SLOW_RATE - 5), _FIRST_LAG, _LAST_LAG - _NUM_TAPS + 1).astype(np.intp)
_TAPS_TS = _FIRST_TAPS_S - _FIRST_LAG + np.arange(_NUM_TAPS)[:, None]  # index among the whole lags
_TAP_SECONDS_TS = (_FIRST_LAG + _TAPS_TS) / _SLOW_RATE
_TAP_WEIGHTS_TS = _windowed_sinc(_LAGS_S - _TAP_SECONDS_TS, _SLOW_RATE / 2, zeros=5) / _SLOW_RATE

_TAP_MATRIX_LS = np.zeros((_NUM_LAGS, len(_LAGS_S)), np.float32)
_TAP_MATRIX_LS[_TAPS_TS, _STATES] = _TAP_WEIGHTS_TS
_LAG_CREDIT_S = (1.0 - _SOFT_LOWEST_HERTZ * _LAGS_S).astype(np.float32)  # what a correlation counts

_NO_JUMP = len(_LAGS_S) + _COARSE  # where the costs of jumps are zero
_JUMP_COSTS = (_JUMP_COST * np.square(np.arange(-_NO_JUMP, _NO_JUMP + 1))).astype(np.float32)
_COARSE_COSTS = np.stack([_JUMP_COSTS[_NO_JUMP - state :][: len(_LAGS_S)] for state in _STATES[::_COARSE]])


class Slow(NamedTuple):
    """Sound at 4 kHz on its way into frames: what later frames still need."""

    samples: FloatArray  # of 16 kHz, that the filter still needs
    sound: Doubles
    totals: Doubles  # sum of all samples of the stream up to each one
    squares: Doubles  # and of their squares
    begin: int  # how many samples of the stream came before these
    heard: int  # samples of 16 kHz so far


class Search(NamedTuple):
    """Viterbi search over the lags: the frames that are not decided yet."""

    costs_S: FloatArray  # of the best path to each state
    back_FS: tuple[States, ...]  # the state before it


class Track(NamedTuple):
    """Pitch and correlation at that pitch, frame by frame."""

    log_pitch: Doubles
    correlation: Doubles

    @property
    def hertz(self) -> Doubles:
        return np.exp(self.log_pitch)

    @property
    def voicing(self) -> Doubles:
        """How likely a frame is voiced, as the published fit tells it from the correlation."""
        c = np.minimum(np.abs(self.correlation), 1.0)
        odds = -5.2 + 5.4 * np.exp(7.5 * (c - 1.0)) + 4.8 * c - 2.0 * np.exp(-10.0 * c) + 4.2 * np.exp(20.0 * (c - 1.0))
        return 1.0 / (1.0 + np.exp(-odds))


class PitchState(NamedTuple):
    """A stream between two pushes."""

    slow: Slow
    search: Search
    voicing_FL: Doubles  # correlations of the frames that are not decided yet
    frames: int  # that have been searched
    track: Track  # decided frames: those that later means need, and those that wait for frames to come
    past: int  # how many of them have been given out


@dataclass(frozen=True)
class Pitch:
    """Pitch features as a stream; the sizes say how far a frame looks, in frames of 10 ms."""

    decision_frames: int = 10
    left_frames: int = 75
    right_frames: int = 4

    def __post_init__(self) -> None:
        assert self.decision_frames >= 0, "the past is decided"
        assert min(self.left_frames, self.right_frames) >= _DELTA_FRAMES, "the slope needs two frames on either side"

    @property
    def delay_frames(self) -> int:
        """How many frames a row of features waits for, beyond its own, besides the 20 ms of the longest lag."""
        return self.decision_frames + self.right_frames

    @property
    def delay_samples(self) -> int:
        """How many samples a row waits for behind the end of its frame: those frames, the lag, and the filter."""
        lag = _STRIDE * (_FULL - 1) + 1 + _REACH - FRAME_SAMPLES
        return self.delay_frames * HOP_SAMPLES + lag

    def start(self) -> PitchState:
        """The state before the first sample."""
        nothing = np.zeros(0)
        slow = Slow(np.zeros(_REACH, np.float32), nothing, nothing, nothing, 0, 0)
        search = Search(np.zeros(len(_LAGS_S), np.float32), ())
        return PitchState(slow, search, np.zeros((0, _NUM_LAGS)), 0, Track(nothing, nothing), 0)

    def step(self, samples: FloatArray, state: PitchState, final: bool = False) -> tuple[FloatArray, PitchState]:
        """The rows (f, 3) that these samples decide, and the state; `final` says that no more will come."""
        track, state = self._tracked(samples, state, final)
        count = max(0, len(track.log_pitch) - state.past - (0 if final else self.right_frames))
        rows = _features(track, state.past, count, self.left_frames, self.right_frames)
        if final:
            return rows, self.start()
        past = state.past + count
        gone = max(0, past - self.left_frames)
        kept = Track(track.log_pitch[gone:].copy(), track.correlation[gone:].copy())
        return rows, state._replace(track=kept, past=past - gone)

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
        slow = _slow_down(samples, state.slow, final)
        count = _frame_count(slow, state.frames, final)
        for_path_FL, for_voicing_FL = _correlate(slow, state.frames, count)
        decided, search = _search(_interpolate(for_path_FL), state.search, self.decision_frames)
        if final and search.back_FS:
            decided += _trace(*search)
        voicing_FL = np.concatenate([state.voicing_FL, for_voicing_FL])
        track = _joined(state.track, _read(decided, voicing_FL))
        frames, rest_FL = state.frames + count, voicing_FL[len(decided) :].copy()
        return track, state._replace(slow=_forget(slow, frames), search=search, voicing_FL=rest_FL, frames=frames)


def _pieces(samples: FloatArray) -> Iterator[tuple[FloatArray, bool]]:
    for begin in range(0, max(len(samples), 1), _PIECE_SAMPLES):
        yield samples[begin : begin + _PIECE_SAMPLES], begin + _PIECE_SAMPLES >= len(samples)


def _slow_down(samples: FloatArray, slow: Slow, final: bool) -> Slow:
    """Filter to below 1 kHz and keep every fourth sample; running sums are carried on in order."""
    heard = slow.heard + len(samples)
    made = slow.begin + len(slow.sound)
    there = -(-heard // _STRIDE) if final else max(made, (heard - _REACH + _STRIDE - 1) // _STRIDE)
    count = there - made
    silence = np.zeros(_REACH if final else 0, np.float32)
    waiting = np.concatenate([slow.samples, samples, silence])
    new = np.zeros(count)
    for tap, weight in enumerate(_LOW_PASS):
        new += weight * waiting[tap : tap + _STRIDE * count : _STRIDE]
    return Slow(
        waiting[_STRIDE * count :].copy(),
        np.concatenate([slow.sound, new]),
        _carried_on(slow.totals, new),
        _carried_on(slow.squares, new * new),
        slow.begin,
        heard,
    )


def _carried_on(sums: Doubles, new: Doubles) -> Doubles:
    """Running sums over more samples; strictly one after the other, so that cutting changes no bit."""
    more = np.cumsum(np.concatenate([sums[-1:], new]))
    return np.concatenate([sums, more[len(sums[-1:]) :]])


def _forget(slow: Slow, frames: int) -> Slow:
    """Without what no later frame needs; the last running sum stays, to be carried on."""
    gone = min(frames * _HOP - slow.begin, len(slow.sound) - 1)
    if gone <= 0:
        return slow
    sound, totals, squares = (array[gone:].copy() for array in (slow.sound, slow.totals, slow.squares))
    return Slow(slow.samples, sound, totals, squares, slow.begin + gone, slow.heard)


def _frame_count(slow: Slow, frames: int, final: bool) -> int:
    """How many frames can be correlated now; at the end all those of the log-mel energies."""
    if final:
        total = 1 + (slow.heard - FRAME_SAMPLES) // HOP_SAMPLES
    else:
        total = 1 + (slow.begin + len(slow.sound) - _FULL) // _HOP
    return max(0, total - frames)


def _correlate(slow: Slow, first: int, count: int) -> tuple[Doubles, Doubles]:
    """Normalised cross-correlations (F, L) at whole lags: with ballast for the path, without it for voicing."""
    begins = (first + np.arange(count)) * _HOP - slow.begin
    sound = np.concatenate([slow.sound, np.zeros(_FULL)])  # the last frames look beyond the end
    around = _windows(sound, _FULL)[begins]
    around = around - (np.ascontiguousarray(around[:, :_WINDOW]).sum(axis=1) / _WINDOW)[:, None]
    squares = around * around
    products, energies = np.zeros((2, count, _NUM_LAGS))
    for index in range(count):  # frame by frame, because sums over many frames at once may run in another order
        products[index] = np.correlate(around[index, _FIRST_LAG:], around[index, :_WINDOW], "valid")
        energies[index] = np.correlate(squares[index, _FIRST_LAG:], _ONES, "valid")
    energies *= np.ascontiguousarray(squares[:, :_WINDOW]).sum(axis=1)[:, None]
    energies += np.square(_WINDOW * _HALF_A_STEP**2)
    return products / np.sqrt(energies + _ballast(slow, begins)[:, None]), products / np.sqrt(energies)


def _ballast(slow: Slow, begins: States) -> Doubles:
    """By the variance of all that has been heard up to the end of each frame."""
    last = np.minimum(begins + _FULL, len(slow.sound))
    mean = slow.totals[last - 1] / (slow.begin + last)
    variance = slow.squares[last - 1] / (slow.begin + last) - mean * mean
    return np.asarray(_BALLAST * np.square(variance * _WINDOW))


def _interpolate(correlations_FL: Doubles) -> FloatArray:
    """Correlations (F, S) at the lags of the grid."""
    found_FS = np.empty((len(correlations_FL), len(_LAGS_S)), np.float32)
    for index, correlations_L in enumerate(correlations_FL.astype(np.float32)):  # frame by frame, as above
        np.dot(correlations_L, _TAP_MATRIX_LS, out=found_FS[index])
    return found_FS


def _search(for_path_FS: FloatArray, search: Search, decision_frames: int) -> tuple[list[int], Search]:
    """Carry the search on by some frames; also the states that were decided on the way."""
    decided, (costs_S, undecided), room = [], search, _Room.make()
    for local_S in 1.0 - for_path_FS * _LAG_CREDIT_S:
        back_S, costs_S = _transit(costs_S, room)
        costs_S += local_S
        costs_S -= costs_S.min()  # an endless stream must not lose its digits
        undecided = (*undecided, back_S)
        if len(undecided) > decision_frames:
            decided.append(_trace(costs_S, undecided)[0])
            undecided = undecided[1:]
    return decided, Search(costs_S, undecided)


class _Room(NamedTuple):
    """Memory that one search writes to again and again: asking for it anew in every frame would take half the time."""

    padded: FloatArray  # costs, with infinity on either side
    candidates: FloatArray

    @classmethod
    def make(cls) -> _Room:
        padded = np.full(len(_LAGS_S) + 2 * _NO_JUMP, np.inf, np.float32)
        return cls(padded, np.empty(len(_LAGS_S) * len(_JUMP_COSTS), np.float32))


def _transit(costs_S: FloatArray, room: _Room) -> tuple[States, FloatArray]:
    """The best state before each state, and the cost to come from there.

    Who is best never falls as the state rises, because jumps cost their square. So the best of every 16th state, found
    among all, bound how far below and above the best of the others can be.
    """
    jumps = (costs_S + _COARSE_COSTS).argmin(axis=1) - _STATES[::_COARSE]
    below, above = max(_COARSE - int(jumps.min()), 0), max(_COARSE + int(jumps.max()), 0)
    padded, shape = room.padded, (len(costs_S), below + 1 + above)
    padded[_NO_JUMP : _NO_JUMP + len(costs_S)] = costs_S
    first = (_NO_JUMP - below) * padded.itemsize
    near_SS = np.ndarray(shape, np.float32, padded, first, strides=2 * padded.strides)
    candidates_SS = room.candidates[: shape[0] * shape[1]].reshape(shape)
    np.add(near_SS, _JUMP_COSTS[_NO_JUMP - below : _NO_JUMP + above + 1], out=candidates_SS)
    best_S = candidates_SS.argmin(axis=1)
    return best_S + (_STATES - below), candidates_SS[_STATES, best_S]


def _trace(costs_S: FloatArray, back_FS: tuple[States, ...]) -> list[int]:
    """The states of the undecided frames on the best path, as it is seen now."""
    state = int(costs_S.argmin())
    path = [state]
    for back_S in back_FS[:0:-1]:
        path.append(state := int(back_S[state]))
    return path[::-1]


def _read(states: list[int], voicing_FL: Doubles) -> Track:
    """Pitch and correlation of frames whose states are decided."""
    chosen = np.array(states, dtype=np.intp)
    found_TF = voicing_FL[np.arange(len(chosen)), _TAPS_TS[:, chosen]] * _TAP_WEIGHTS_TS[:, chosen]
    return Track(-np.log(_LAGS_S[chosen]), np.cumsum(found_TF, axis=0)[-1])  # one tap after the other


def _joined(first: Track, second: Track) -> Track:
    return Track(*(np.concatenate(both) for both in zip(first, second, strict=True)))


def _features(track: Track, past: int, count: int, left: int, right: int) -> FloatArray:
    """Rows for `count` frames behind `past` earlier ones: voicing, pitch less its mean, slope of pitch."""
    if count == 0:
        return np.zeros((0, NUM_PITCH), np.float32)
    missing = (left - past, max(0, right - (len(track.log_pitch) - past - count)))
    weights = np.pad(track.voicing, missing)  # what is not there has no weight
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
    windows = _windows(values, width)[:count].copy()  # each is summed alone, in one order
    return np.asarray(windows.sum(axis=1))


def _windows(values: Doubles, width: int) -> Doubles:
    """Every stretch of that width, as a view: made for each push, which numpy's own function is too slow for."""
    return np.ndarray((len(values) - width + 1, width), np.float64, values, strides=2 * values.strides)
