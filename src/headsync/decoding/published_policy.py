"""The published decoding policy: Algorithm 1 with the joint score, for the segmented utterances of a corpus.

A step is not gated by CTC: step i may attend to min(t_{i-1} + M, T) frames (accumulation), to frames until it fires
(monotonic attention), or to all T frames (offline). <eos> ends a text at any step, also before the recording ends.

CTC only adds its score. At step i it scores the frames below n_i, which has arrived when the step is taken:

    n_i = max(n_{i-1}, the largest limit of the live hypotheses)            accumulation
    n_i = max(n_{i-1}, the furthest frame consumed in the step + M)         attention that fires by itself
    n_i = T                                                                 offline

never more than T. A candidate token is scored by the CTC prefix probability of these frames, <eos> by the probability
of exactly this text. When the recording has ended, the texts that ended before are scored again on all T frames, and
the best is chosen. So every decision depends on frames alone, and any chunking gives the same text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from headsync.decoding import ctc_prefix
from headsync.decoding.beam import Search
from headsync.decoding.hypothesis import Beam, Hypothesis, SpeechFrames
from headsync.decoding.pending_step import PendingStep
from headsync.decoding.scoring import CtcScorer
from headsync.engine import NO_LIMIT
from headsync.frontend.audio import FloatArray


@dataclass(frozen=True)
class PublishedSearch(Search):
    patience_frames: float = math.inf

    def advance(self, beam: Beam, speech: SpeechFrames, final: bool) -> Beam:
        """Take all steps that can be taken on the frames so far; at the end, score all texts on all frames."""
        beam = self._steps(beam, speech, final=False)
        if not final:
            return beam
        ended = tuple(self._on_all_frames(h, speech.log_ctc_TV) for h in beam.ended)
        return self._finished(self._steps(self._rescored(beam._replace(ended=ended), speech), speech, final=True))

    def _spike(self, h: Hypothesis, speech: SpeechFrames) -> int:
        return -1

    def _limit(self, h: Hypothesis, speech: SpeechFrames, final: bool) -> int | None:
        limit = self.limit(h.t, self.config.lookahead_frames)
        return NO_LIMIT if limit is None and final else limit

    def _is_decided(self, beam: Beam, step: PendingStep, speech: SpeechFrames, final: bool) -> bool:
        """All hypotheses have an answer, and the frames that CTC scores have arrived."""
        if not super()._is_decided(beam, step, speech, final):
            return False
        return final or beam.ctc is None or self._ctc_frames(beam, step) <= speech.frames

    def _ctc_frames(self, beam: Beam, step: PendingStep) -> int:
        """n_i, not yet limited to T."""
        assert step.answers is not None
        limits = [self.limit(h.t, self.config.lookahead_frames) for h in beam.live]
        furthest = max(NO_LIMIT if limit is None else limit for limit in limits)
        if furthest < NO_LIMIT:
            return furthest
        return int(step.answers.end_BNH.max()) + self.config.lookahead_frames

    def _write(self, beam: Beam, step: PendingStep, speech: SpeechFrames, final: bool) -> Beam:
        assert step.answers is not None
        beam = self._carry(beam, speech, min(self._ctc_frames(beam, step), speech.frames))
        ctc = None if beam.ctc is None else CtcScorer(beam.ctc, speech.log_ctc_TV)
        found = self.joint.candidates(beam.live, step.answers.log_p_BV, step.language_BV, ctc)
        expanded = self._expand(beam, step, found, speech, self._also_end(beam, found, speech))
        return self._pruned(expanded) if final else expanded

    def _on_all_frames(self, h: Hypothesis, log_ctc_TV: FloatArray) -> Hypothesis:
        """A text that ended before the recording did, with the CTC score of all frames."""
        if not self.config.ctc_weight:
            return h
        state = ctc_prefix.advance(ctc_prefix.start(1), log_ctc_TV)
        for token in h.tokens:
            state = ctc_prefix.extend(state, [0], np.array([token]), log_ctc_TV)
        h = replace(h, ctc=float(ctc_prefix.whole(state)[0]))
        return replace(h, score=self.joint.score(h))
