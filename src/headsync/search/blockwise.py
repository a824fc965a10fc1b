"""BS-DEC, blockwise synchronous beam search: softmax over all frames so far, label by label, block by block.

The decoder itself tells when a block is exhausted: a text would end (<eos>) or say something again before the input has
ended. Then the search goes back to the texts of two tokens earlier, but not behind those with which the block began,
and waits for the next block. Going back happens within a block alone: so all that is live after it stays, and what is
live later descends from it. After the last block the beam goes on until all texts have ended, so nothing is lost there.

`decoding.blockwise` chooses between two sets of rules:

    published   A block is what arrives. It is exhausted when any of the best texts ends, or says a token that it holds
                already. Only the blank path of CTC goes on into new frames: a label that lasts into them is lost.
    corrected   A block is `decoding.block_frames` frames of the utterance, whenever they arrive. It is exhausted when
                the best text of all ends, or says a token again where CTC says that rather nothing follows; others
                that do so are no candidates. CTC is carried exactly. The last token is taken back only as long as
                less than the look-ahead M has come behind the evidence for so many tokens.

So published results depend on when frames arrive: which frames the decoder sees at each step, hence every score, what
is written and its halt; where the blank path of CTC starts; and where the search goes back. With the encoder's blocks
as the clock of a stream, though, any cutting of the audio gives the same. The corrected rules depend on frames alone.
What remains in both is that a token rests on as many frames as there were when it was written, not on all of them.

Memory is bounded by that of an utterance, which an endpoint ends; of earlier beams only one is kept, within a block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headsync.audio import FloatArray
from headsync.engine import NO_LIMIT, BoolArray
from headsync.search import ctc_prefix
from headsync.search.beam import Search, best_first
from headsync.search.ctc_prefix import CtcState
from headsync.search.evidence import Evidence
from headsync.search.hypothesis import Beam, Heard, Hypothesis
from headsync.search.joint import Candidates, Heeded
from headsync.search.step import Step


@dataclass(frozen=True)
class BlockwiseSearch(Search):
    """What does not change during a search; the policy is of no use, a step looks at all there is in its block."""

    def start(self, looking: bool = False) -> Beam:
        """CTC is carried along also where it has no weight: it knows whether more has been said."""
        return super().start(looking)._replace(ctc=ctc_prefix.start(1))

    def advance(self, beam: Beam, heard: Heard, final: bool) -> Beam:
        """Each call is a block, by the published rules; by the corrected ones any number of blocks, or none."""
        if self.config.blockwise == "corrected":
            for frames in self._ends(beam, heard.evidence.frames):
                beam = self._block(beam, heard.up_to(frames))
        elif not final:
            beam = self._block(beam, heard)
        return self._finish(beam, heard) if final else beam

    def close(self, beam: Beam, heard: Heard, frames: int) -> tuple[Beam, int]:
        """Blocks are searched as they come, and the silence with them."""
        return self.advance(beam, heard, final=True), heard.evidence.frames

    def _ends(self, beam: Beam, frames: int) -> range:
        """Where blocks end that are full and have not been searched."""
        return range(beam.live[0].searched + self.config.block_frames, frames + 1, self.config.block_frames)

    def _block(self, beam: Beam, heard: Heard) -> Beam:
        """Write until the block is exhausted, and go back."""
        before, now = None, self._carry(beam, heard, heard.evidence.frames)
        while not self._over(now, heard.evidence.frames):
            step = self._ask(now, self._begin(now), heard, final=False)
            found = self._candidates(now, step, heard)
            if found is None:
                break
            before, now = now, self._expand(now, step, found, heard)
        kept = now if before is None or self._ripe(now, heard.evidence) else before
        return kept._replace(live=tuple(replace(h, searched=heard.evidence.frames) for h in kept.live))

    def _finish(self, beam: Beam, heard: Heard) -> Beam:
        """The input has ended: now texts may end, and nothing is taken back."""
        beam = self._carry(beam, heard, heard.evidence.frames)
        if not self.config.ctc_weight:
            beam = beam._replace(ctc=None)
        return self._steps(self._rescored(beam, heard), heard, final=True)

    def _limit(self, h: Hypothesis, heard: Heard, final: bool) -> int | None:
        return NO_LIMIT if final else heard.evidence.frames

    def _carry(self, beam: Beam, heard: Heard, frames: int) -> Beam:
        if beam.ctc is None or self.config.blockwise == "corrected":
            return super()._carry(beam, heard, frames)
        return beam._replace(ctc=blank_alone(beam.ctc, heard.log_ctc_TV[beam.ctc.frames : frames]))

    def _candidates(self, beam: Beam, step: Step, heard: Heard) -> Candidates | None:
        """What may follow in this block; None where it is exhausted."""
        assert step.answers is not None
        assert beam.ctc is not None
        heeded = Heeded(beam.ctc, heard.log_ctc_TV) if self.config.ctc_weight else None
        found = self.joint.candidates(beam.live, step.answers.log_p_BV, step.language_BV, heeded)
        stops_BK = self._stops(beam.live, found, Heeded(beam.ctc, heard.log_ctc_TV))
        best = best_first(found.joint_BK, self.config.beam if self.config.blockwise == "published" else 1)
        return found.allowed(~stops_BK) if best and not any(stops_BK[place] for place in best) else None

    def _stops(self, live: Sequence[Hypothesis], found: Candidates, ctc: Heeded) -> BoolArray:
        """Where a text ends or, unless CTC supports it, says something again."""
        again_BK = np.array([np.isin(token_K, h.tokens) for h, token_K in zip(live, found.token_BK, strict=True)])
        if self.config.blockwise == "corrected":
            psi_BK = ctc_prefix.extensions(ctc.state, found.token_BK, ctc.log_ctc_TV)
            again_BK &= psi_BK < ctc_prefix.whole(ctc.state)[:, None]  # rather nothing follows than this
        return np.asarray(again_BK | (found.token_BK == self.end))

    def _ripe(self, beam: Beam, evidence: Evidence) -> bool:
        """Whether the last token is to stay: enough has been heard behind the evidence for so many."""
        if self.config.blockwise == "published":
            return False
        ripe = bisect_left(evidence.spikes, evidence.frames - self.config.lookahead_frames)
        return len(beam.live[0].tokens) <= ripe


def blank_alone(state: CtcState, log_ctc_TV: FloatArray) -> CtcState:
    """CTC prefixes after more frames, as published: from the blank at the last frame by blanks, and by nothing else."""
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
