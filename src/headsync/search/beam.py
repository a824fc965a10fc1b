"""Joint beam search, label by label: ask -> score -> prune; a beam of one is greedy.

A label step is taken when it is decided for each hypothesis of the beam. Those whose step is decided wait for the
others and are not asked again. All are scored on the same frames, up to the furthest that a decision rests on, and not
on whatever else has arrived: so neither waiting nor the arrival of frames changes a score.

Before the utterance has ended, <eos> is never written. Where it is the best there is, those hypotheses that prefer it
have said all there is in the frames they were shown, and wait for evidence of more. If that comes and a hypothesis
looks no further than before, waiting cannot change its mind: then it has to write.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headsync.config import DecodingConfig
from headsync.engine import NO_LIMIT, BoolArray, Engine, IntArray, Memory, Window
from headsync.search import ctc_prefix
from headsync.search.hotwords import Hotwords
from headsync.search.hypothesis import Beam, Heard, Hypothesis
from headsync.search.joint import Candidates, Heeded, Joint
from headsync.search.policy import Policy
from headsync.search.scorers import LanguageModel, Scores, logsumexp
from headsync.search.step import Answers, Step, answers, rows_of
from headsync.streaming import take_rows

__all__ = ["Beam", "Heard", "Hypothesis", "Search"]

RISE = 10.0  # how much better a text may become by going on, where scores can rise
HOPELESS = 20.0  # a text so much worse than the best is not worth finishing


@dataclass(frozen=True)
class Search:
    """What does not change during a search."""

    engine: Engine
    policy: Policy
    config: DecodingConfig
    end: int  # the token <sos>/<eos>
    language: LanguageModel | None = None
    hotwords: Hotwords | None = None
    ahead: int | None = None  # how far the policy may look past its base; None: M

    @cached_property
    def joint(self) -> Joint:
        return Joint(self.config, self.end, self.hotwords)

    def start(self, looking: bool = False) -> Beam:
        ctc = ctc_prefix.start(1) if self.config.ctc_weight else None
        language = self.language.start(1) if self.language and self.config.lm_weight else None
        first = Hypothesis(looks=() if looking else None)
        return Beam((first,), (), self.engine.start_decoder(1), ctc, language)

    def advance(self, beam: Beam, heard: Heard, final: bool) -> Beam:
        """Take all the steps that can be taken on the frames that there are.

        The end comes after them, even if it arrived with the last of them: else the text would depend on that.
        """
        beam = self._steps(beam, heard, final=False)
        return self._steps(self._rescored(beam, heard), heard, final=True) if final else beam

    def close(self, beam: Beam, heard: Heard, frames: int) -> tuple[Beam, int]:
        """At the end nothing asks for evidence: what is behind these frames is not looked at, unless it has been."""
        beam = self.advance(beam, heard, final=False)
        frames = max(frames, beam.seen)
        return self.advance(beam, heard.up_to(frames), final=True), frames

    def _steps(self, beam: Beam, heard: Heard, final: bool) -> Beam:
        while not self._over(beam, heard.evidence.frames):
            step = self._ask(beam, beam.step or self._begin(beam), heard, final)
            if step.waiting(len(beam.live)):
                return beam._replace(step=step)
            beam = self._write(beam, step, heard, final)
        return beam

    def _begin(self, beam: Beam) -> Step:
        """What can be said without frames."""
        if self.language is None or beam.language is None:
            return Step()
        return Step(None, *self.language.step(self._last(beam), beam.language))

    def _ask(self, beam: Beam, step: Step, heard: Heard, final: bool) -> Step:
        """Ask the decoder for those who wait, if there is something to look at."""
        limits = {row: self._limit(beam.live[row], heard, final) for row in step.waiting(len(beam.live))}
        rows = [row for row, limit in limits.items() if limit is not None]
        if not rows:
            return step
        limit_B = np.array([limits[row] for row in rows])
        window = Window(limit_B, np.full_like(limit_B, heard.evidence.frames), np.full(len(rows), final))
        state = beam.state if len(rows) == len(beam.live) else take_rows(beam.state, rows)
        decoded = self.engine.decode(self._last(beam)[rows], _up_to(heard.memory, window), state, window)
        spikes = [heard.evidence.after(len(beam.live[row].tokens), beam.live[row].searched) for row in rows]
        looking = beam.live[0].looks is not None
        found = answers(rows, [-1 if spike is None else spike for spike in spikes], decoded, window, looking)
        return step.heard(found) if len(found.row_B) else step

    def _limit(self, h: Hypothesis, heard: Heard, final: bool) -> int | None:
        """Where a hypothesis may look; None if it has to wait."""
        ahead = self.config.lookahead_frames if self.ahead is None else self.ahead
        limit = self.policy(len(h.tokens), h.t, h.searched, heard.evidence, ahead)
        return NO_LIMIT if limit is None and final else limit

    def _write(self, beam: Beam, step: Step, heard: Heard, final: bool) -> Beam:
        """All are decided: score what may follow, and keep the best; or hold those that would end too early."""
        assert step.answers is not None
        beam = self._carry(beam, heard, heard.evidence.frames if final else int(step.answers.seen_B.max()))
        heeded = None if beam.ctc is None else Heeded(beam.ctc, heard.log_ctc_TV)
        found = self.joint.candidates(beam.live, step.answers.log_p_BV, step.language_BV, heeded)
        ends_BK = found.token_BK == self.end
        if not final:
            found = found.allowed(~(ends_BK & self._unmoved(beam, step.answers, found)[:, None]))
        settled_BK = self.joint.settled(beam.live, found)
        prefers_B = settled_BK.argmax(1) == ends_BK.argmax(1)
        if final:
            return self._pruned(self._expand(beam, step, found, heard, prefers_B))
        if prefers_B[settled_BK.max(1).argmax()]:
            return _held(beam, step, prefers_B)
        return self._expand(beam, step, found.allowed(~ends_BK), heard)

    def _carry(self, beam: Beam, heard: Heard, frames: int) -> Beam:
        """Let CTC hear the frames up to the given one."""
        if beam.ctc is None or beam.ctc.frames >= frames:
            return beam
        return beam._replace(ctc=ctc_prefix.advance(beam.ctc, heard.log_ctc_TV[beam.ctc.frames : frames]))

    def _unmoved(self, beam: Beam, given: Answers, found: Candidates) -> BoolArray:
        """Those that looked no further than when they were held; unless there is nothing else to say."""
        searched_B = np.array([h.searched for h in beam.live])
        others_BK = np.where(found.token_BK == self.end, -np.inf, found.joint_BK)
        unmoved_B: BoolArray = (given.end_BNH.max((1, 2)) <= searched_B) & np.isfinite(others_BK.max(1))
        return unmoved_B

    def _expand(
        self, beam: Beam, step: Step, found: Candidates, heard: Heard, prefers_B: BoolArray | None = None
    ) -> Beam:
        """The best of all that may follow; those who prefer to end do so, whatever is lent to others."""
        assert step.answers is not None
        total_B = logsumexp(found.joint_BK)
        live, rows, ended = [], [], list(beam.ended)
        for row, column in self._places(found, prefers_B):
            sure = math.exp(found.joint_BK[row, column] - total_B[row])
            grown = self._grown(beam.live[row], found, (row, column), step.answers, sure)
            if found.token_BK[row, column] == self.end:
                ended.append(grown)
            else:
                live.append(grown)
                rows.append(row)
        ctc = beam.ctc
        if ctc is not None:
            tokens = np.array([h.tokens[-1] for h in live], np.int64)
            ctc = ctc_prefix.extend(ctc, rows, tokens, heard.log_ctc_TV)
        states = take_rows(step.answers.state, rows), ctc, rows_of(step.language, rows)
        return Beam(tuple(live), tuple(ended), *states)

    def _places(self, found: Candidates, prefers_B: BoolArray | None) -> list[tuple[int, int]]:
        places = best_first(found.joint_BK, self.config.beam)
        if prefers_B is None or self.hotwords is None:  # nothing is lent to anyone
            return places
        ends = [(int(row), int((found.token_BK[row] == self.end).argmax())) for row in np.flatnonzero(prefers_B)]
        return places + [place for place in ends if place not in places]

    def _grown(
        self, h: Hypothesis, found: Candidates, place: tuple[int, int], given: Answers, sure: float
    ) -> Hypothesis:
        end_NH = given.end_BNH[place[0]]
        token, t = int(found.token_BK[place]), int(end_NH.max())  # t: furthest frame of any head of any layer
        if self.config.halting == "monotone":
            t = max(h.t, t)
        writes = token != self.end
        return Hypothesis(
            tokens=(*h.tokens, token) if writes else h.tokens,
            score=float(found.joint_BK[place]),
            attention=float(found.attention_BK[place]),
            halts=(*h.halts, t) if writes else h.halts,
            searched=h.searched,
            consumed=h.consumed + int(end_NH.sum()),
            steps=h.steps + 1,
            ctc=float(found.ctc_BK[place]),
            lm=float(found.lm_BK[place]),
            hotwords=float(found.hotwords_BK[place]),
            confidences=(*h.confidences, sure) if writes else h.confidences,
            node=self.hotwords.after(h.node, token) if self.hotwords and writes else h.node,
            looks=h.looked(given.look_B[place[0]]) if writes else h.looks,
        )

    def _pruned(self, beam: Beam) -> Beam:
        """Once as many have ended as are asked for, only what may still be better goes on."""
        if not beam.ended or not beam.live:
            return beam
        ended = sorted((h.score for h in beam.ended), reverse=True)
        enough = ended[0] - HOPELESS
        if len(ended) >= self.config.nbest:
            enough = max(enough, ended[self.config.nbest - 1] - (RISE if self.joint.may_rise else 0.0))
        rows = [row for row, h in enumerate(beam.live) if h.score > enough]
        if len(rows) == len(beam.live):
            return beam
        live = tuple(beam.live[row] for row in rows)
        states = take_rows(beam.state, rows), rows_of(beam.ctc, rows), rows_of(beam.language, rows)
        return Beam(live, beam.ended, *states)

    def _rescored(self, beam: Beam, heard: Heard) -> Beam:
        """Before anything is final: what was scored when fewer frames had come is scored on all of them."""
        beam = self._carry(beam, heard, heard.evidence.frames)
        if beam.ctc is None:
            return beam
        live = [replace(h, ctc=float(psi)) for h, psi in zip(beam.live, beam.ctc.psi_B, strict=True)]
        return beam._replace(live=tuple(replace(h, score=self.joint.score(h)) for h in live))

    def _over(self, beam: Beam, frames: int) -> bool:
        most = 5 + self.config.most_tokens_per_frame * frames
        return not beam.live or len(beam.live[0].tokens) >= most

    def _last(self, beam: Beam) -> IntArray:
        return np.array([h.tokens[-1] if h.tokens else self.end for h in beam.live])


def best_first(scores_BK: Scores, most: int) -> list[tuple[int, int]]:
    """Places of the best scores; equal ones in the order of rows and columns, impossible ones not at all."""
    flat = scores_BK.ravel()
    least = np.partition(flat, -most)[-most] if most < flat.size else -np.inf
    places = np.flatnonzero((flat >= least) & (flat > -np.inf))
    places = places[np.argsort(-flat[places], kind="stable")][:most]
    return [(int(place) // scores_BK.shape[1], int(place) % scores_BK.shape[1]) for place in places]


def _held(beam: Beam, step: Step, held_B: BoolArray) -> Beam:
    """Those that would end have searched all they were shown."""
    assert step.answers is not None
    live = tuple(
        replace(h, searched=int(searched)) if held else h
        for h, held, searched in zip(beam.live, held_B, step.answers.searched_B, strict=True)
    )
    return beam._replace(live=live, step=step.without(np.flatnonzero(held_B)))


def _up_to(memory: Memory, window: Window) -> Memory:
    """Only the frames that some hypothesis may look at."""
    reach = int(np.minimum(window.limit_B, window.frames_B).max())
    return Memory(memory.keys_BNHTD[:, :, :, :reach], memory.values_BNHTD[:, :, :, :reach])
