"""The endpointer: where utterances begin and end in a stream. A stage between the encoder and the search.

An utterance opens when a CTC spike has at least `onset_probability`. Fainter spikes before it then count too, unless
there is a pause between. The utterance starts a second before its first spike. It ends after a pause, or by its length.

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
from headsync.events import Reason
from headsync.frontend.audio import FloatArray
from headsync.frontend.frame_rate import LOG_MEL, FrameRate

LEAD_SECONDS = 1.0  # an utterance starts at most this long before its first CTC spike
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

    def step(self, log_ctc_TV: FloatArray, state: EndpointState) -> tuple[Decision, EndpointState]:
        """Take frames up to the first endpoint, or all of them."""
        frames, endpoint, now = 0, None, state
        for log_ctc_V in log_ctc_TV:
            now, frames = self._add(log_ctc_V, now), frames + 1
            if endpoint := self._endpoint(now):
                break
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

    def next_utterance(self, state: EndpointState, end: int) -> EndpointState:
        """The state after an utterance that ends at `end`; a token that continues beyond it does not spike again."""
        return EndpointState(state.frames, start=end, idle_from=state.frames, label=state.label, last_speech=end - 1)

    def _add(self, log_ctc_V: FloatArray, state: EndpointState) -> EndpointState:
        """The state after one more frame."""
        probability = -np.expm1(min(0.0, float(log_ctc_V[0])))  # of all tokens together
        label = 1 + int(log_ctc_V[1:].argmax()) if probability >= self.config.spike_probability else 0
        spikes = state.spikes if state.is_open else state.spikes.without_first(self._stale(state))
        if label not in (0, state.label):
            spikes = spikes.add(state.frames, label)
        opens = label and spikes.frames and probability >= self.config.onset_probability
        last = state.frames if label else state.last_speech
        is_open = state.is_open or bool(opens)
        return EndpointState(state.frames + 1, state.start, state.idle_from, is_open, spikes, label, last)

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
