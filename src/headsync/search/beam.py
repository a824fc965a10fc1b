"""Beam search, label by label: expand -> score -> prune; a beam of one is greedy.

The beam waits until the step of each of its hypotheses is decided, so that no score depends on when frames arrived.
Before the utterance has ended, <eos> is never written: a hypothesis that prefers it has said all there is in the frames
it was shown, and waits for evidence of more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headsync.config import DecodingConfig
from headsync.engine import NO_LIMIT, BoolArray, Decoded, Engine, IntArray, Memory, State, Window
from headsync.search.evidence import Evidence
from headsync.search.policy import Policy
from headsync.streaming import take_rows


@dataclass(frozen=True)
class Hypothesis:
    """A text so far, and how it came about."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    halts: tuple[int, ...] = ()  # t_i of every token
    searched: int = 0  # up to here there is nothing more to write
    consumed: int = 0  # sum over layers, heads and steps of frames consumed: the numerator of eq. (10)
    steps: int = 0

    @property
    def t(self) -> int:
        return self.halts[-1] if self.halts else 0


class Beam(NamedTuple):
    """The hypotheses of an utterance, best first; rows of `state` belong to the live ones."""

    live: tuple[Hypothesis, ...]
    ended: tuple[Hypothesis, ...]
    state: State

    @property
    def best(self) -> Hypothesis:
        return max((*self.ended, *self.live), key=lambda h: h.score) if self.ended else self.live[0]


@dataclass(frozen=True)
class Search:
    """What does not change during a search."""

    engine: Engine
    policy: Policy
    config: DecodingConfig
    end: int  # the token <sos>/<eos>

    def start(self) -> Beam:
        return Beam((Hypothesis(),), (), self.engine.start_decoder(1))

    def advance(self, beam: Beam, memory: Memory, evidence: Evidence, final: bool) -> Beam:
        """Take all the steps that can be taken on the frames that there are.

        The end comes after them, even if it arrived with the last of them: else the text would depend on that.
        """
        beam = self._steps(beam, memory, evidence, final=False)
        return self._steps(beam, memory, evidence, final=True) if final else beam

    def _steps(self, beam: Beam, memory: Memory, evidence: Evidence, final: bool) -> Beam:
        while not self._over(beam, evidence.frames):
            beam, window = self._limits(beam, evidence, final)
            if window is None:
                return beam
            tokens = np.array([h.tokens[-1] if h.tokens else self.end for h in beam.live])
            step = self.engine.decode(tokens, _up_to(memory, window), beam.state, window)
            if not step.ready_B.all():
                return beam
            ends = 1 + step.log_p_BV[:, 1:].argmax(1) == self.end  # the blank is CTC's
            if not final and ends.any():
                beam = beam._replace(live=_hold(beam.live, ends, window.limit_B))
                continue
            beam = self._expand(beam, step, final)
        return beam

    def _limits(self, beam: Beam, evidence: Evidence, final: bool) -> tuple[Beam, Window | None]:
        """Where each hypothesis may look; no window if one of them has to wait."""
        limits = [
            self.policy(len(h.tokens), h.t, h.searched, evidence, self.config.lookahead_frames) for h in beam.live
        ]
        if None in limits and not final:
            return beam, None
        limit_B = np.array([NO_LIMIT if limit is None else limit for limit in limits])
        return beam, Window(limit_B, np.full_like(limit_B, evidence.frames), np.full(len(limits), final))

    def _expand(self, beam: Beam, step: Decoded, final: bool) -> Beam:
        log_p = step.log_p_BV.astype(np.float64)
        log_p[:, 0] = -np.inf
        if not final:
            log_p[:, self.end] = -np.inf
        total = np.array([h.score for h in beam.live])[:, None] + log_p
        flat = np.argsort(-total, axis=None, kind="stable")[: self.config.beam]
        live, rows, ended = [], [], list(beam.ended)
        for row, token in zip(*np.unravel_index(flat, total.shape), strict=True):
            if total[row, token] == -np.inf:  # the beam is wider than there are texts
                continue
            grown = _grown(beam.live[row], int(token), float(total[row, token]), step.end_BNH[row])
            if token == self.end:
                ended.append(replace(grown, tokens=grown.tokens[:-1], halts=grown.halts[:-1]))
            else:
                live.append(grown)
                rows.append(int(row))
        return Beam(tuple(live), tuple(ended), take_rows(step.state, rows))

    def _over(self, beam: Beam, frames: int) -> bool:
        """Scores only fall, so that an ended hypothesis better than all live ones stays the best."""
        if not beam.live:
            return True
        most = 5 + self.config.most_tokens_per_frame * frames
        if len(beam.live[0].tokens) >= most:
            return True
        return bool(beam.ended) and max(h.score for h in beam.ended) >= beam.live[0].score


def _hold(live: tuple[Hypothesis, ...], ends: BoolArray, limit_B: IntArray) -> tuple[Hypothesis, ...]:
    """Those that would end have searched all they were shown."""
    return tuple(
        replace(h, searched=int(limit)) if end else h for h, end, limit in zip(live, ends, limit_B, strict=True)
    )


def _grown(h: Hypothesis, token: int, score: float, end_NH: IntArray) -> Hypothesis:
    t = max(h.t, int(end_NH.max()))  # the furthest frame reached by any head of any layer, and never back
    return Hypothesis((*h.tokens, token), score, (*h.halts, t), h.searched, h.consumed + int(end_NH.sum()), h.steps + 1)


def _up_to(memory: Memory, window: Window) -> Memory:
    """Only the frames that some hypothesis may look at."""
    reach = int(np.minimum(window.limit_B, window.frames_B).max())
    return Memory(memory.keys_BNHTD[:, :, :, :reach], memory.values_BNHTD[:, :, :, :reach])
