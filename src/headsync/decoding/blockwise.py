"""BS-DEC, blockwise synchronous beam search: softmax over all frames so far, label by label, block by block.

The decoder decides when a block is exhausted: a text would end (<eos>) or repeat a token before the input has ended.
Then the search goes back by two tokens, but not beyond the beginning of the block, and waits for the next block. It
goes back within a block only, so every later hypothesis descends from those that are live after a block. After the last
block the beam continues until all texts have ended.

`decoding.policy` chooses between two sets of rules, as published and corrected for live streams:

    published   A block is what arrives. It is exhausted when any of the best texts ends, or repeats one of its tokens.
                Only the blank path of CTC continues into new frames: a label that lasts into them is lost.
    gated       A block is 8 frames of the utterance, whenever they arrive. It is exhausted when
                the best text ends, or repeats a token that is less probable by CTC than no further token; other texts
                that do so are no candidates. CTC is exact. The last token, the n-th, is removed only while fewer than
                M frames have arrived since the n-th CTC spike.

Published results therefore depend on when frames arrive. Frames arrive in encoder blocks, so any chunking of the audio
still gives the same result. The corrected rules depend on frames alone. With both, a token depends on the frames that
had arrived when it was emitted, not on all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headsync.decoding import ctc_prefix
from headsync.decoding.beam import Search, best_first
from headsync.decoding.ctc_prefix import CtcState
from headsync.decoding.hypothesis import Beam, Hypothesis, SpeechFrames
from headsync.decoding.pending_step import PendingStep
from headsync.decoding.scoring import Candidates, CtcScorer
from headsync.engine import NO_LIMIT, BoolArray
from headsync.frontend.audio import FloatArray


@dataclass(frozen=True)
class BlockwiseSearch(Search):
    """A blockwise search without a limit: a step attends to all frames of its block."""

    block_frames: int = 8  # of a block by the corrected rules

    def start(self, trace: bool = False) -> Beam:
        """The first beam; CTC detects repeated tokens and is therefore required even with weight 0."""
        return super().start(trace)._replace(ctc=ctc_prefix.start(1))

    def advance(self, beam: Beam, speech: SpeechFrames, final: bool) -> Beam:
        """By the published rules each call is a block; by the corrected ones, any number of blocks."""
        if self.config.policy == "gated":
            for frames in self._ends(beam, speech.frames):
                beam = self._block(beam, speech.up_to(frames))
        elif not final:
            beam = self._block(beam, speech)
        return self._finish(beam, speech) if final else beam

    def close(self, beam: Beam, speech: SpeechFrames, frames: int) -> tuple[Beam, int]:
        """End the utterance after all frames: the silence has been searched already."""
        return self.advance(beam, speech, final=True), speech.frames

    def _ends(self, beam: Beam, frames: int) -> range:
        """The ends of complete blocks that have not been searched."""
        return range(beam.live[0].exhausted + self.block_frames, frames + 1, self.block_frames)

    def _block(self, beam: Beam, speech: SpeechFrames) -> Beam:
        """Decode until the block is exhausted, and go back."""
        before, now = None, self._carry(beam, speech, speech.frames)
        while not self._over(now, speech.frames):
            step = self._ask(now, self._begin(now), speech, final=False)
            found = self._candidates(now, step, speech)
            if found is None:
                break
            before, now = now, self._expand(now, step, found, speech)
        kept = now if before is None or self._ripe(now, speech) else before
        return kept._replace(live=tuple(replace(h, exhausted=speech.frames) for h in kept.live))

    def _finish(self, beam: Beam, speech: SpeechFrames) -> Beam:
        """Search after the end of the input: texts may end, and no token is removed."""
        beam = self._carry(beam, speech, speech.frames)
        if not self.config.ctc_weight:
            beam = beam._replace(ctc=None)
        return self._finished(self._steps(self._rescored(beam, speech), speech, final=True))

    def _limit(self, h: Hypothesis, speech: SpeechFrames, final: bool) -> int | None:
        return NO_LIMIT if final else speech.frames

    def _carry(self, beam: Beam, speech: SpeechFrames, frames: int) -> Beam:
        if beam.ctc is None or self.config.policy == "gated":
            return super()._carry(beam, speech, frames)
        return beam._replace(ctc=blank_alone(beam.ctc, speech.log_ctc_TV[beam.ctc.frames : frames]))

    def _candidates(self, beam: Beam, step: PendingStep, speech: SpeechFrames) -> Candidates | None:
        """The candidates in this block; None if it is exhausted."""
        assert step.answers is not None
        assert beam.ctc is not None
        ctc = CtcScorer(beam.ctc, speech.log_ctc_TV)
        found = self.joint.candidates(
            beam.live, step.answers.log_p_BV, step.language_BV, ctc if self.config.ctc_weight else None, ends=False
        )
        stops_BK = self._stops(beam.live, found, ctc)
        best = best_first(found.joint_BK, self.config.beam if self.config.policy == "published" else 1)
        return found.allowed(~stops_BK) if best and not any(stops_BK[place] for place in best) else None

    def _stops(self, live: Sequence[Hypothesis], found: Candidates, ctc: CtcScorer) -> BoolArray:
        """The candidates that end a text or, unless CTC supports it, repeat a token."""
        again_BK = np.array([np.isin(token_K, h.tokens) for h, token_K in zip(live, found.token_BK, strict=True)])
        if self.config.policy == "gated":
            psi_BK = ctc_prefix.extensions(ctc.state, found.token_BK, ctc.log_ctc_TV)
            again_BK &= psi_BK < ctc_prefix.whole(ctc.state)[:, None]  # no further token is more probable
        return np.asarray(again_BK | (found.token_BK == self.end))

    def _ripe(self, beam: Beam, speech: SpeechFrames) -> bool:
        """Whether the last token, the n-th, is kept: M frames have arrived since the n-th CTC spike."""
        if self.config.policy == "published":
            return False
        ripe = bisect_left(speech.spikes.frames, speech.frames - self.config.lookahead_frames)
        return len(beam.live[0].tokens) <= ripe


def blank_alone(state: CtcState, log_ctc_TV: FloatArray) -> CtcState:
    """CTC prefixes after more frames, as published: by the blank path alone."""
    p_blank_T = np.maximum(log_ctc_TV[:, 0].astype(np.float64), ctc_prefix.IMPOSSIBLE)
    blank_BT = np.concatenate([state.blank_BT, state.blank_BT[:, -1:] + np.cumsum(p_blank_T)], 1)
    never_BT = np.full((len(blank_BT), len(log_ctc_TV)), -np.inf)
    label_BT = np.concatenate([state.label_BT, never_BT], 1)
    return state._replace(
        label_BL=np.concatenate([state.label_BL[:, :-1], label_BT[:, -1:]], 1),
        blank_BL=np.concatenate([state.blank_BL[:, :-1], blank_BT[:, -1:]], 1),
        label_BT=label_BT,
        blank_BT=blank_BT,
    )
