"""The state of a search: hypotheses, the beam that they form, and the frames of the utterance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headsync.decoding.attention_trace import AttentionTrace
from headsync.decoding.ctc_prefix import CtcState
from headsync.decoding.pending_step import PendingStep
from headsync.decoding.phrases import START, PhraseState
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import Memory, State
from headsync.events import NO_STOPS, Stops
from headsync.frontend.audio import FloatArray


@dataclass(frozen=True)
class Hypothesis:
    """A text so far, its scores, and the frames that it used."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0  # joint: the weighted sum of the parts below
    attention: float = 0.0  # of the decoder alone
    halts: tuple[int, ...] = ()  # t_i of every token
    exhausted: int = 0  # the frames below this contain no further token: on them it prefers <eos>
    consumed: int = 0  # sum over layers, heads and steps of frames consumed: the numerator of eq. (10)
    steps: int = 0
    stops: Stops = NO_STOPS
    ctc: float = 0.0
    lm: float = 0.0
    hotwords: float = 0.0  # and the phrase list
    confidences: tuple[float, ...] = ()  # probability of every token among all candidates of its step
    node: int = 0  # of the hotwords' tree
    phrases: PhraseState = START  # in the phrase list
    traces: tuple[AttentionTrace, ...] | None = None  # of every token; None: not traced

    @property
    def t(self) -> int:
        return self.halts[-1] if self.halts else 0

    def with_trace(self, trace: AttentionTrace | None) -> tuple[AttentionTrace, ...] | None:
        """The traces with one more, if they are kept."""
        return None if self.traces is None or trace is None else (*self.traces, trace)


class Beam(NamedTuple):
    """The hypotheses of an utterance; rows of the states belong to the live ones."""

    live: tuple[Hypothesis, ...]
    ended: tuple[Hypothesis, ...]
    state: State  # of the decoder
    ctc: CtcState | None = None  # None: CTC has no weight
    language: State | None = None  # of the language model
    step: PendingStep | None = None  # while some of the live hypotheses are undecided

    @property
    def used_frames(self) -> int:
        """The number of frames that its texts and scores depend on."""
        halts = (halt for h in (*self.live, *self.ended) for halt in h.halts)
        decided = () if self.step is None or self.step.answers is None else self.step.answers.used_B
        return max(0 if self.ctc is None else self.ctc.frames, *halts, *map(int, decided), 0)

    @property
    def best(self) -> Hypothesis:
        """The best live hypothesis; if none is live, the best that has ended."""
        return self.nbest(1)[0]

    def nbest(self, most: int) -> tuple[Hypothesis, ...]:
        """As `best`, best first; no two have the same tokens."""
        return tuple(sorted(self.live or self.ended, key=lambda h: -h.score)[:most])


class SpeechFrames(NamedTuple):
    """The frames of an utterance so far: decoder keys and values, CTC scores, and the spikes."""

    memory: Memory
    log_ctc_TV: FloatArray
    spikes: CtcSpikes  # counted in the utterance

    @property
    def frames(self) -> int:
        return len(self.log_ctc_TV)

    def up_to(self, frames: int) -> SpeechFrames:
        memory = Memory(*(part[:, :, :, :frames] for part in self.memory))
        return SpeechFrames(memory, self.log_ctc_TV[:frames], self.spikes.before(frames))
