"""What the search carries along: hypotheses, the beam they form, and what has been heard."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from headsync.audio import FloatArray
from headsync.engine import Memory, State
from headsync.search.ctc_prefix import CtcState
from headsync.search.evidence import Evidence
from headsync.search.look import Look
from headsync.search.step import Step


@dataclass(frozen=True)
class Hypothesis:
    """A text so far, and how it came about."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0  # joint: the weighted sum of the parts below
    attention: float = 0.0  # of the decoder alone
    halts: tuple[int, ...] = ()  # t_i of every token
    searched: int = 0  # up to here there is nothing more to write
    consumed: int = 0  # sum over layers, heads and steps of frames consumed: the numerator of eq. (10)
    steps: int = 0
    ctc: float = 0.0
    lm: float = 0.0
    hotwords: float = 0.0
    confidences: tuple[float, ...] = ()  # of every token, among all that could have stood there
    node: int = 0  # among the hotwords
    looks: tuple[Look, ...] | None = None  # of every token; None: nobody wants to see them

    @property
    def t(self) -> int:
        return self.halts[-1] if self.halts else 0

    def looked(self, look: Look | None) -> tuple[Look, ...] | None:
        """The looks with one more, if they are kept."""
        return None if self.looks is None or look is None else (*self.looks, look)


class Beam(NamedTuple):
    """The hypotheses of an utterance; rows of the states belong to the live ones."""

    live: tuple[Hypothesis, ...]
    ended: tuple[Hypothesis, ...]
    state: State  # of the decoder
    ctc: CtcState | None = None  # None: CTC has no weight
    language: State | None = None  # of the language model
    step: Step | None = None  # on its way, while some of the live ones are undecided

    @property
    def seen(self) -> int:
        """How many frames it rests on."""
        halts = (halt for h in (*self.live, *self.ended) for halt in h.halts)
        decided = () if self.step is None or self.step.answers is None else self.step.answers.seen_B
        return max(0 if self.ctc is None else self.ctc.frames, *halts, *map(int, decided), 0)

    @property
    def best(self) -> Hypothesis:
        """The best that has ended, if any has: what is still live then ran into the limit on its length."""
        return max(self.ended or self.live, key=lambda h: h.score)

    def nbest(self, most: int) -> tuple[Hypothesis, ...]:
        """The best that have ended, if any have, best first; no two of them have the same tokens."""
        return tuple(sorted(self.ended or self.live, key=lambda h: -h.score)[:most])


class Heard(NamedTuple):
    """What there is of an utterance so far: its frames as the decoder and as CTC see them."""

    memory: Memory
    log_ctc_TV: FloatArray
    evidence: Evidence

    def up_to(self, frames: int) -> Heard:
        """The first frames of it."""
        spikes = bisect_left(self.evidence.spikes, frames)
        evidence = self.evidence._replace(
            spikes=self.evidence.spikes[:spikes], tokens=self.evidence.tokens[:spikes], frames=frames
        )
        memory = Memory(*(part[:, :, :, :frames] for part in self.memory))
        return Heard(memory, self.log_ctc_TV[:frames], evidence)
