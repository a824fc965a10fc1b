"""The endpointer: where utterances begin and end in a stream. A stage between the encoder and the search.

An utterance opens when a CTC spike has at least `onset_probability`, or two within a second have at least `onset_pair`.
Fainter spikes before it then count too, unless there is a pause between. Speech not above the noise floor needs a
stronger onset. The utterance starts a second before its first spike. It ends after a pause, or by its length.

CTC spikes late in a word, so the next word may have begun when a pause is long enough. The silence of a pause is
therefore shared: the first half belongs to the utterance that it ends, and the rest is kept for the next one.

Endpoints are a function of frames alone, so the chunking of the audio does not change them. Frames are counted from the
beginning of the stream.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from headsync.config import EndpointConfig
from headsync.endpointing.ctc_spikes import NO_SPIKES, CtcSpikes
from headsync.endpointing.noise_floor import NoiseFloor
from headsync.engine import BoolArray
from headsync.events import Reason
from headsync.frontend.audio import FloatArray
from headsync.frontend.frame_rate import LOG_MEL, FrameRate

LEAD_SECONDS = 1.0  # an utterance starts at most this long before its first CTC spike
ONSET_BEHIND = 0.9  # least onset probability of speech not above the noise floor
PAIR_SECONDS = 1.0  # longest distance of two spikes that open an utterance together
_SHORT_PAUSE_SECONDS = 0.2  # pause that ends an utterance of `longest_seconds`


class EndpointState(NamedTuple):
    """The state of the endpointer."""

    frames: int = 0  # so far
    start: int = 0  # the next utterance may not begin before it: the end of the previous utterance
    idle_from: int = 0  # frame since which no utterance is open
    is_open: bool = False  # whether an utterance is open
    spikes: CtcSpikes = NO_SPIKES  # of the open utterance, or of the possible next one
    label: int = 0  # greedy CTC label of the last frame; 0 is blank
    last_speech: int = -1  # last frame whose label is not blank
    pair_first: int = -1  # last spike that would open an utterance together with the next
    noise: NoiseFloor = NoiseFloor()

    @property
    def silence(self) -> int:
        """Frames since the last one with speech."""
        return self.frames - 1 - self.last_speech


STREAM_START = EndpointState()


class Decision(NamedTuple):
    """The number of frames that a step consumed, and the endpoint at the last of them."""

    frames: int
    endpoint: Reason | None = None


@dataclass(frozen=True)
class Endpointer:
    """Endpointing with fixed settings; immutable, shared by every stream."""

    config: EndpointConfig
    rate: FrameRate = LOG_MEL
    always_final: ClassVar[bool] = False  # whether an utterance without text has a Final

    def start(self) -> EndpointState:
        """The state before the first frame."""
        return STREAM_START

    def step(self, log_ctc_TV: FloatArray, level_T: FloatArray, state: EndpointState) -> tuple[Decision, EndpointState]:
        """Take frames up to the first endpoint, or all of them; their levels are in decibels."""
        frames, endpoint, now = 0, None, state
        for log_ctc_V, foreground in zip(log_ctc_TV, self._foreground(level_T, state), strict=True):
            now, frames = self._add(log_ctc_V, bool(foreground), now), frames + 1
            if endpoint := self._endpoint(now):
                break
        if self.config.foreground_db:
            now = now._replace(noise=now.noise.add(level_T[:frames]))
        return Decision(frames, endpoint), now

    def first_frame(self, state: EndpointState) -> int:
        """The first frame of the open utterance; if none is open, the earliest possible one of the next."""
        spike = state.spikes.frames[0] if state.spikes.frames else state.frames
        return max(state.start, spike - self.lead_frames)

    def end_frame(self, state: EndpointState) -> int:
        """The end of an utterance that the last frame closed: the middle of the silence."""
        return state.frames - min(state.silence // 2, self.most_left)

    @property
    def most_left(self) -> int:
        """The most frames that a closed utterance leaves to the next one, which uses no more than its lead."""
        return min(self.pause_frames // 2, self.lead_frames)

    @property
    def lead_frames(self) -> int:
        return self.rate.frames(LEAD_SECONDS)

    @property
    def pause_frames(self) -> int:
        return max(1, self.rate.frames(self.config.pause_seconds))

    @property
    def longest_frames(self) -> int:
        return max(1, self.rate.frames(self.config.longest_seconds))

    @property
    def silence_frames(self) -> int:
        return max(1, self.rate.frames(self.config.silence_seconds))

    @property
    def pair_frames(self) -> int:
        return self.rate.frames(PAIR_SECONDS)

    def next_utterance(self, state: EndpointState, end: int) -> EndpointState:
        """The state after an utterance that ends at `end`; a token that continues beyond it does not spike again."""
        return EndpointState(
            state.frames, start=end, idle_from=state.frames, label=state.label, last_speech=end - 1, noise=state.noise
        )

    def _foreground(self, level_T: FloatArray, state: EndpointState) -> BoolArray:
        if not self.config.foreground_db or not len(level_T):
            return np.ones(len(level_T), bool)
        return state.noise.foreground(level_T, self.config.foreground_db)

    def _add(self, log_ctc_V: FloatArray, foreground: bool, state: EndpointState) -> EndpointState:
        """The state after one more frame."""
        probability = -np.expm1(min(0.0, float(log_ctc_V[0])))  # of all tokens together
        label = 1 + int(log_ctc_V[1:].argmax()) if probability >= self.config.spike_probability else 0
        spikes = state.spikes if state.is_open else state.spikes.without_first(self._stale(state))
        if label not in (0, state.label):
            spikes = spikes.add(state.frames, label)
        is_open, pair_first = state.is_open, state.pair_first
        if label and spikes.frames:
            onset, pair = self._thresholds(foreground)
            is_pair = spikes.frames[0] <= pair_first < spikes.frames[-1] <= pair_first + self.pair_frames
            is_open = is_open or probability >= onset or (probability >= pair and is_pair)
            pair_first = spikes.frames[-1] if probability >= pair else pair_first
        last = state.frames if label else state.last_speech
        return EndpointState(
            state.frames + 1, state.start, state.idle_from, is_open, spikes, label, last, pair_first, state.noise
        )

    def _thresholds(self, foreground: bool) -> tuple[float, float]:
        """The probability of an onset, and that of each of two."""
        onset, pair = self.config.onset_probability, self.config.onset_pair
        return (onset, pair) if foreground else (max(onset, ONSET_BEHIND), max(onset, pair))

    def _stale(self, state: EndpointState) -> int:
        """The number of spikes before an onset that no longer count: a pause follows them, or they are too old."""
        if state.silence >= self.pause_frames:
            return len(state.spikes.frames)
        return bisect_left(state.spikes.frames, state.frames - self.longest_frames)

    def _endpoint(self, state: EndpointState) -> Reason | None:
        """The endpoint at the last frame, if it is one."""
        if not state.is_open:
            return "silence" if state.frames - state.idle_from == self.silence_frames else None
        length = state.frames - self.first_frame(state)
        if length >= 2 * self.longest_frames:
            return "length"
        if length >= self.longest_frames and state.silence >= self.rate.frames(_SHORT_PAUSE_SECONDS):
            return "length"
        return "pause" if state.silence >= self.pause_frames else None


class WholeRecording(Endpointer):
    """No endpoints: a recording is one utterance, from its first frame to its last, also if CTC never spikes."""

    always_final: ClassVar[bool] = True

    def start(self) -> EndpointState:
        return EndpointState(is_open=True)

    def first_frame(self, state: EndpointState) -> int:
        return 0

    def _endpoint(self, state: EndpointState) -> Reason | None:
        return None


def build_endpointer(config: EndpointConfig, rate: FrameRate) -> Endpointer:
    """The endpointer for these settings and a model's frame rate."""
    return WholeRecording(config, rate) if config.whole_recording else Endpointer(config, rate)
