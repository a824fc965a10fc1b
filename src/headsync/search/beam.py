"""Beam search, label by label: expand -> score -> prune; a beam of one is greedy.

The beam waits until the step of each of its hypotheses is decided, so that no score depends on when frames arrived.
Before the utterance has ended, <eos> is never written: a hypothesis that prefers it has said all there is in the frames
it was shown, and waits for evidence of more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headsync.audio import FloatArray
from headsync.config import DecodingConfig
from headsync.engine import NO_LIMIT, BoolArray, Decoded, Engine, IntArray, Memory, State, Window
from headsync.search.ctc_prefix import Scores, prefix_scores
from headsync.search.evidence import Evidence
from headsync.search.policy import Policy
from headsync.streaming import take_rows


@dataclass(frozen=True)
class Hypothesis:
    """A text so far, and how it came about."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0  # joint, of decoder and CTC
    attention: float = 0.0  # of the decoder alone
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
        """The best that has ended, if any has: what is still live then ran into the limit on its length."""
        return max(self.ended, key=lambda h: h.score) if self.ended else self.live[0]


class Heard(NamedTuple):
    """What there is of an utterance so far: its frames as the decoder and as CTC see them."""

    memory: Memory
    log_ctc_TV: FloatArray
    evidence: Evidence


@dataclass(frozen=True)
class Search:
    """What does not change during a search."""

    engine: Engine
    policy: Policy
    config: DecodingConfig
    end: int  # the token <sos>/<eos>

    def start(self) -> Beam:
        return Beam((Hypothesis(),), (), self.engine.start_decoder(1))

    def advance(self, beam: Beam, heard: Heard, final: bool) -> Beam:
        """Take all the steps that can be taken on the frames that there are.

        The end comes after them, even if it arrived with the last of them: else the text would depend on that.
        """
        beam = self._steps(beam, heard, final=False)
        return self._steps(self._rescored(beam, heard), heard, final=True) if final else beam

    def _steps(self, beam: Beam, heard: Heard, final: bool) -> Beam:
        while not self._over(beam, heard.evidence.frames):
            window = self._window(beam, heard.evidence, final)
            if window is None:
                return beam
            tokens = np.array([h.tokens[-1] if h.tokens else self.end for h in beam.live])
            step = self.engine.decode(tokens, _up_to(heard.memory, window), beam.state, window)
            if not step.ready_B.all():
                return beam
            attention_BV, joint_BV = self._score(beam, step, heard)
            ends = joint_BV.argmax(1) == self.end
            if not final and ends.any():
                beam = beam._replace(live=_hold(beam.live, ends, window.limit_B))
                continue
            if not final:
                joint_BV[:, self.end] = -np.inf
            beam = self._expand(beam, step, attention_BV, joint_BV)
        return beam

    def _score(self, beam: Beam, step: Decoded, heard: Heard) -> tuple[Scores, Scores]:
        """Decoder and joint scores of every hypothesis with every token after it; (1 - w) decoder + w CTC."""
        attention_BV = np.array([h.attention for h in beam.live])[:, None] + step.log_p_BV.astype(np.float64)
        attention_BV[:, 0] = -np.inf  # the blank is CTC's
        weight = self.config.ctc_weight
        if weight == 0:
            return attention_BV, attention_BV.copy()
        ctc = prefix_scores(_tokens(beam), heard.log_ctc_TV)
        ctc.psi_BV[:, self.end] = ctc.whole_B
        return attention_BV, (1 - weight) * attention_BV + weight * ctc.psi_BV

    def _rescored(self, beam: Beam, heard: Heard) -> Beam:
        """Before anything is final: what was scored when fewer frames had come is scored on all of them."""
        weight = self.config.ctc_weight
        if weight == 0:
            return beam
        psi_B = prefix_scores(_tokens(beam), heard.log_ctc_TV).psi_B
        scores = [(1 - weight) * h.attention + weight * float(psi) for h, psi in zip(beam.live, psi_B, strict=True)]
        order = sorted(range(len(scores)), key=lambda row: -scores[row])
        live = tuple(replace(beam.live[row], score=scores[row]) for row in order)
        return Beam(live, beam.ended, take_rows(beam.state, order))

    def _window(self, beam: Beam, evidence: Evidence, final: bool) -> Window | None:
        """Where each hypothesis may look; no window if one of them has to wait."""
        limits = [
            self.policy(len(h.tokens), h.t, h.searched, evidence, self.config.lookahead_frames) for h in beam.live
        ]
        if None in limits and not final:
            return None
        limit_B = np.array([NO_LIMIT if limit is None else limit for limit in limits])
        return Window(limit_B, np.full_like(limit_B, evidence.frames), np.full(len(limits), final))

    def _expand(self, beam: Beam, step: Decoded, attention_BV: Scores, joint_BV: Scores) -> Beam:
        flat = np.argsort(-joint_BV, axis=None, kind="stable")[: self.config.beam]
        live, rows, ended = [], [], list(beam.ended)
        for row, token in zip(*np.unravel_index(flat, joint_BV.shape), strict=True):
            if joint_BV[row, token] == -np.inf:  # the beam is wider than there are texts
                continue
            scores = float(joint_BV[row, token]), float(attention_BV[row, token])
            grown = _grown(beam.live[row], int(token), scores, step.end_BNH[row])
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


def _tokens(beam: Beam) -> IntArray:
    return np.array([h.tokens for h in beam.live], np.int64).reshape(len(beam.live), -1)


def _grown(h: Hypothesis, token: int, scores: tuple[float, float], end_NH: IntArray) -> Hypothesis:
    t = max(h.t, int(end_NH.max()))  # the furthest frame reached by any head of any layer, and never back
    return Hypothesis(
        (*h.tokens, token), *scores, (*h.halts, t), h.searched, h.consumed + int(end_NH.sum()), h.steps + 1
    )


def _up_to(memory: Memory, window: Window) -> Memory:
    """Only the frames that some hypothesis may look at."""
    reach = int(np.minimum(window.limit_B, window.frames_B).max())
    return Memory(memory.keys_BNHTD[:, :, :, :reach], memory.values_BNHTD[:, :, :, :reach])
