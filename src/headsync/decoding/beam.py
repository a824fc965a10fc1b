"""Joint beam search, label by label, for live streams; a beam of one is greedy.

The stages of an output step:

1. Begin: the language model scores the next token of every live hypothesis, which needs no frames.
2. Ask: each hypothesis waits for its CTC spike (`gated_spike`), which gives its limit. The decoder computes those that
   have one. Online attention decides the step, or needs more frames; decided answers are kept (`PendingStep`).
   Hypotheses of equal length are at different places of the speech. Those that need frames long after the best one are
   dropped (`_without_late`); otherwise the text would wait for the hypothesis that is furthest ahead.
3. Score: when every live hypothesis is decided, the joint scores of all candidates are computed. CTC scores all
   hypotheses on the same frames: those that some answer depends on (`used_B`), even if more have arrived. So the
   arrival of frames does not change a score.
4. Expand: the best candidates are the next beam, and the next step begins.

Before the utterance has ended, no text ends. If <eos> has the best score, the hypotheses that prefer it have no further
token in the frames they were shown: these are exhausted, the step is postponed, and they wait for a later spike. If a
hypothesis then consumes no frame beyond the exhausted ones, it would prefer <eos> forever, so <eos> is excluded.

When the utterance has ended, the steps that are left need no spike, and a decoder that has lost its place can repeat
words. With CTC every hypothesis that has no spike left therefore also ends, even if <eos> is none of the best
candidates: the scores of CTC decide between the text with repeated words and the one without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headsync.config import DecodingConfig
from headsync.decoding import ctc_prefix
from headsync.decoding.cost import sum_stops
from headsync.decoding.ctc_prefix import logsumexp
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Beam, Hypothesis, SpeechFrames
from headsync.decoding.lookahead import LAG_FRAMES, Limit, gated_limit, gated_spike
from headsync.decoding.pending_step import Answers, PendingStep, decided_answers, rows_of
from headsync.decoding.phrases import Phrases
from headsync.decoding.scoring import Candidates, CtcScorer, JointScorer
from headsync.engine import NO_LIMIT, BoolArray, Engine, IntArray, Memory, Window
from headsync.engine.state_tree import take_rows
from headsync.lm import LanguageModel, Scores

RISE = 10.0  # how much better a longer text may score, if scores can rise
HOPELESS = 20.0  # a hypothesis this much worse than the best is dropped
PATIENCE_FRAMES = 4  # of a live stream: the best hypothesis waits this long for the answers to the others


@dataclass(frozen=True)
class Search:
    """A search with fixed settings; immutable, shared by every stream."""

    engine: Engine
    limit: Limit
    config: DecodingConfig
    end: int  # the token <sos>/<eos>
    language: LanguageModel | None = None
    hotwords: Hotwords | None = None
    phrases: Phrases | None = None
    threshold: float | None = None  # at which heads halt; None: that of the model
    most_tokens_per_frame: float = 1.0  # of an utterance, besides five more
    punctuation: frozenset[int] = frozenset()  # tokens that CTC need not emit
    patience_frames: float = PATIENCE_FRAMES

    @cached_property
    def joint(self) -> JointScorer:
        return JointScorer(self.config, self.end, self.hotwords, self.phrases)

    def _lm_for(self, use: str) -> LanguageModel | None:
        """The language model, if `lm_use` is this: "fusion" (every step) or "rescoring" (texts that have ended)."""
        return self.language if self.config.lm_weight and self.config.lm_use == use else None

    def start(self, trace: bool = False) -> Beam:
        ctc = ctc_prefix.start(1) if self.config.ctc_weight else None
        lm = self._lm_for("fusion")
        language = lm.start(1) if lm else None
        first = Hypothesis(traces=() if trace else None)
        return Beam((first,), (), self.engine.start_decoder(1, self.threshold), ctc, language)

    def advance(self, beam: Beam, speech: SpeechFrames, final: bool) -> Beam:
        """Take all steps that can be taken on the frames so far.

        The end is processed after them, even if it arrives with the last frames: its time must not change the text.
        """
        beam = self._steps(beam, speech, final=False)
        return self._finished(self._steps(self._rescored(beam, speech), speech, final=True)) if final else beam

    def close(self, beam: Beam, speech: SpeechFrames, frames: int) -> tuple[Beam, int]:
        """End the utterance after `frames` frames, or after more if the beam has used more."""
        beam = self.advance(beam, speech, final=False)
        frames = max(frames, beam.used_frames)
        return self.advance(beam, speech.up_to(frames), final=True), frames

    def _steps(self, beam: Beam, speech: SpeechFrames, final: bool) -> Beam:
        while not self._over(beam, speech.frames):
            step = self._ask(beam, beam.step or self._begin(beam), speech, final)
            if not final:
                beam, step = self._without_late(beam, step, speech)
            if not self._is_decided(beam, step, speech, final):
                return beam._replace(step=step)
            beam = self._write(beam, step, speech, final)
        return beam

    def _without_late(self, beam: Beam, step: PendingStep, speech: SpeechFrames) -> tuple[Beam, PendingStep]:
        """Drop hypotheses whose answer depends on frames long after those of the best one, which would wait for them.

        Not while a hypothesis waits in a pause: those that write a token there would win.
        """
        if step.answers is None or any(h.exhausted > h.t for h in beam.live):
            return beam, step
        used = dict(zip(step.answers.row_B.tolist(), step.answers.used_B.tolist(), strict=True))
        best = max(range(len(beam.live)), key=lambda row: beam.live[row].score)
        latest = used.get(best, math.inf) + self.patience_frames
        rows = [row for row in range(len(beam.live)) if used.get(row, math.inf) <= latest]
        if speech.frames < latest or len(rows) == len(beam.live):
            return beam, step
        return _only(beam, rows), step.only(rows)

    def _is_decided(self, beam: Beam, step: PendingStep, speech: SpeechFrames, final: bool) -> bool:
        return not step.waiting(len(beam.live))

    def _begin(self, beam: Beam) -> PendingStep:
        """The scores that need no frames."""
        if self.language is None or beam.language is None:
            return PendingStep()
        return PendingStep(None, *self.language.step(self._last(beam), beam.language))

    def _ask(self, beam: Beam, step: PendingStep, speech: SpeechFrames, final: bool) -> PendingStep:
        """Ask the decoder for the undecided hypotheses that have a limit."""
        limits = {row: self._limit(beam.live[row], speech, final) for row in step.waiting(len(beam.live))}
        rows = [row for row, limit in limits.items() if limit is not None]
        if not rows:
            return step
        limit_B = np.array([limits[row] for row in rows])
        window = Window(limit_B, np.full_like(limit_B, speech.frames), np.full(len(rows), final))
        state = beam.state if len(rows) == len(beam.live) else take_rows(beam.state, rows)
        decoded = self.engine.decode(self._last(beam)[rows], _up_to(speech.memory, window), state, window)
        spikes = [self._spike(beam.live[row], speech) for row in rows]
        found = decided_answers(rows, spikes, decoded, window, beam.live[0].traces is not None)
        return step.with_answers(found) if len(found.row_B) else step

    def _spike(self, h: Hypothesis, speech: SpeechFrames) -> int:
        """The frame of the CTC spike for the next token; -1 without one."""
        spike = gated_spike(h, speech.spikes, self.punctuation)
        return -1 if spike is None else spike

    def _limit(self, h: Hypothesis, speech: SpeechFrames, final: bool) -> int | None:
        """The first frame that a hypothesis may not attend to; None if it has to wait."""
        spike = gated_spike(h, speech.spikes, self.punctuation)
        limit = None if spike is None else gated_limit(h, spike, self.limit, self.config.lookahead_frames)
        return NO_LIMIT if limit is None and final else limit

    def _write(self, beam: Beam, step: PendingStep, speech: SpeechFrames, final: bool) -> Beam:
        """All hypotheses are decided: score the candidates and keep the best; or postpone those that would end."""
        assert step.answers is not None
        beam = self._carry(beam, speech, speech.frames if final else int(step.answers.used_B.max()))
        ctc = None if beam.ctc is None else CtcScorer(beam.ctc, speech.log_ctc_TV)
        found = self.joint.candidates(beam.live, step.answers.log_p_BV, step.language_BV, ctc, ends=final)
        if final:
            return self._pruned(self._expand(beam, step, found, speech, self._also_end(beam, found, speech)))
        ends_BK = found.token_BK == self.end
        found = found.allowed(~(ends_BK & self._no_further(beam, step.answers, found)[:, None]))
        settled_BK = self.joint.settled(beam.live, found)
        prefers_B = settled_BK.argmax(1) == ends_BK.argmax(1)
        if prefers_B[settled_BK.max(1).argmax()]:
            return _postponed(beam, step, prefers_B)
        return self._expand(beam, step, found.allowed(~ends_BK), speech)

    def _also_end(self, beam: Beam, found: Candidates, speech: SpeechFrames) -> BoolArray:
        """The hypotheses that end after the utterance even if this is none of the best candidates.

        These are texts that have no spike left, and those that would end but for the boosts of hotwords.
        """
        ends_B = np.zeros(len(beam.live), bool)
        if self.config.policy == "gated" and self.config.ctc_weight:
            ends_B |= [not self._has_spike(h, speech) for h in beam.live]
        if self.joint.lends:
            ends_B |= self.joint.settled(beam.live, found).argmax(1) == (found.token_BK == self.end).argmax(1)
        return ends_B

    def _has_spike(self, h: Hypothesis, speech: SpeechFrames) -> bool:
        """Whether CTC has written more tokens than the hypothesis, or one in frames that it has not attended to."""
        return self._spike(h, speech) >= 0 or speech.spikes.next_after(0, h.t - LAG_FRAMES) is not None

    def _carry(self, beam: Beam, speech: SpeechFrames, frames: int) -> Beam:
        """Advance the CTC scores to the first `frames` frames."""
        if beam.ctc is None or beam.ctc.frames >= frames:
            return beam
        return beam._replace(ctc=ctc_prefix.advance(beam.ctc, speech.log_ctc_TV[beam.ctc.frames : frames]))

    def _no_further(self, beam: Beam, given: Answers, found: Candidates) -> BoolArray:
        """The hypotheses that consumed no frame beyond the exhausted ones, if another token is possible."""
        exhausted_B = np.array([h.exhausted for h in beam.live])
        others_BK = np.where(found.token_BK == self.end, -np.inf, found.joint_BK)
        no_further_B: BoolArray = (given.end_BNH.max((1, 2)) <= exhausted_B) & np.isfinite(others_BK.max(1))
        return no_further_B

    def _expand(
        self, beam: Beam, step: PendingStep, found: Candidates, speech: SpeechFrames, ends_B: BoolArray | None = None
    ) -> Beam:
        """The beam of the best candidates; hypotheses in `ends_B` also end, even if this is none of the best."""
        assert step.answers is not None
        total_B = logsumexp(found.joint_BK)
        live, rows, ended = [], [], list(beam.ended)
        for row, column in self._places(found, ends_B):
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
            ctc = ctc_prefix.extend(ctc, rows, tokens, speech.log_ctc_TV)
        states = take_rows(step.answers.state, rows), ctc, rows_of(step.language, rows)
        return Beam(tuple(live), tuple(ended), *states)

    def _places(self, found: Candidates, ends_B: BoolArray | None) -> list[tuple[int, int]]:
        places = best_first(found.joint_BK, self.config.beam)
        if ends_B is None:
            return places
        ends = [(int(row), int((found.token_BK[row] == self.end).argmax())) for row in np.flatnonzero(ends_B)]
        return places + [place for place in ends if place not in places and np.isfinite(found.joint_BK[place])]

    def _grown(
        self, h: Hypothesis, found: Candidates, place: tuple[int, int], given: Answers, sure: float
    ) -> Hypothesis:
        end_NH = given.end_BNH[place[0]]
        token = int(found.token_BK[place])
        t = max(h.t, int(end_NH.max()))  # the furthest frame of any head of any layer so far
        writes = token != self.end
        return Hypothesis(
            tokens=(*h.tokens, token) if writes else h.tokens,
            score=float(found.joint_BK[place]),
            attention=float(found.attention_BK[place]),
            halts=(*h.halts, t) if writes else h.halts,
            exhausted=h.exhausted,
            consumed=h.consumed + int(end_NH.sum()),
            steps=h.steps + 1,
            stops=sum_stops(h.stops, given.stops_B3[place[0]].tolist()),
            ctc=float(found.ctc_BK[place]),
            lm=float(found.lm_BK[place]),
            hotwords=float(found.hotwords_BK[place]),
            confidences=(*h.confidences, sure) if writes else h.confidences,
            node=self.hotwords.after(h.node, token) if self.hotwords and writes else h.node,
            phrases=self.phrases.after(h.phrases, token) if self.phrases and writes else h.phrases,
            traces=h.with_trace(given.trace_B[place[0]]) if writes else h.traces,
        )

    def _pruned(self, beam: Beam) -> Beam:
        """Drop live hypotheses that cannot become better, once enough texts have ended."""
        if not beam.ended or not beam.live:
            return beam
        ended = sorted((h.score for h in beam.ended), reverse=True)
        enough = ended[0] - HOPELESS
        most = max(self.config.nbest, self.config.beam if self._lm_for("rescoring") else 1)
        if len(ended) >= most:
            enough = max(enough, ended[most - 1] - (RISE if self.joint.may_rise else 0.0))
        rows = [row for row, h in enumerate(beam.live) if h.score > enough]
        return beam if len(rows) == len(beam.live) else _only(beam, rows)

    def _finished(self, beam: Beam) -> Beam:
        """Drop texts that reached the length limit, if any other text has ended."""
        if not beam.ended:
            return beam
        lm = self._lm_for("rescoring")
        ended = tuple(self.joint.rescored(h, lm) for h in beam.ended) if lm else beam.ended
        return beam._replace(live=(), ended=ended)

    def _rescored(self, beam: Beam, speech: SpeechFrames) -> Beam:
        """At the end: CTC scores of the live hypotheses on all frames."""
        beam = self._carry(beam, speech, speech.frames)
        if beam.ctc is None:
            return beam
        live = [replace(h, ctc=float(psi)) for h, psi in zip(beam.live, beam.ctc.psi_B, strict=True)]
        return beam._replace(live=tuple(replace(h, score=self.joint.score(h)) for h in live))

    def _over(self, beam: Beam, frames: int) -> bool:
        most = 5 + self.most_tokens_per_frame * frames
        return not beam.live or len(beam.live[0].tokens) >= most

    def _last(self, beam: Beam) -> IntArray:
        return np.array([h.tokens[-1] if h.tokens else self.end for h in beam.live])


def best_first(scores_BK: Scores, most: int) -> list[tuple[int, int]]:
    """Rows and columns of the best scores; equal ones in order, impossible ones never."""
    flat = scores_BK.ravel()
    least = np.partition(flat, -most)[-most] if most < flat.size else -np.inf
    places = np.flatnonzero((flat >= least) & (flat > -np.inf))
    places = places[np.argsort(-flat[places], kind="stable")][:most]
    return [(int(place) // scores_BK.shape[1], int(place) % scores_BK.shape[1]) for place in places]


def _only(beam: Beam, rows: list[int]) -> Beam:
    live = tuple(beam.live[row] for row in rows)
    states = take_rows(beam.state, rows), rows_of(beam.ctc, rows), rows_of(beam.language, rows)
    return Beam(live, beam.ended, *states)


def _postponed(beam: Beam, step: PendingStep, prefers_B: BoolArray) -> Beam:
    """Postpone the hypotheses that prefer <eos> until a spike in frames that are not exhausted."""
    assert step.answers is not None
    live = tuple(
        replace(h, exhausted=int(exhausted)) if prefers else h
        for h, prefers, exhausted in zip(beam.live, prefers_B, step.answers.exhausted_B, strict=True)
    )
    return beam._replace(live=live, step=step.without_answers(np.flatnonzero(prefers_B)))


def _up_to(memory: Memory, window: Window) -> Memory:
    """The frames that some hypothesis may attend to."""
    reach = int(np.minimum(window.limit_B, window.frames_B).max())
    return Memory(memory.keys_BNHTD[:, :, :, :reach], memory.values_BNHTD[:, :, :, :reach])
