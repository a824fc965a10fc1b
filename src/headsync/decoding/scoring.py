"""The joint score of every token that may follow a hypothesis: the weighted sum of all scorers.

    joint = (1 - w) decoder + w CTC + lm_weight language model + length_bonus tokens + hotwords

The decoder and CTC depend on frames, the others on tokens alone. The scores of a phrase list are added to those of
hotwords; tokens that it excludes are impossible.

Shapes: B hypotheses, K candidates of each, V classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headsync.config import DecodingConfig
from headsync.decoding.ctc_prefix import CtcState, extensions, whole
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Hypothesis
from headsync.decoding.phrases import Phrases
from headsync.engine import BoolArray, IntArray
from headsync.frontend.audio import FloatArray
from headsync.lm import LanguageModel, Scores

PRE_BEAM = 40  # tokens of each hypothesis that CTC scores
PUBLISHED_PRE_BEAM = 1.5  # times the beam


class Candidates(NamedTuple):
    """Tokens that may follow each hypothesis; the scores are those of the whole text with the token."""

    token_BK: IntArray
    joint_BK: Scores
    attention_BK: Scores
    ctc_BK: Scores
    lm_BK: Scores
    hotwords_BK: Scores

    def allowed(self, allowed_BK: BoolArray) -> Candidates:
        """With all other candidates impossible."""
        return self._replace(joint_BK=np.where(allowed_BK, self.joint_BK, -np.inf))


class CtcScorer(NamedTuple):
    """The CTC prefixes of the hypotheses, and the scores of the frames."""

    state: CtcState
    log_ctc_TV: FloatArray


@dataclass(frozen=True)
class JointScorer:
    """The weighted sum of all scorers."""

    config: DecodingConfig
    end: int
    hotwords: Hotwords | None = None
    phrases: Phrases | None = None

    @property
    def may_rise(self) -> bool:
        """Whether a longer text can score better than its beginning; sums of log probabilities cannot."""
        return self.config.length_bonus > 0 or self.hotwords is not None

    @property
    def lends(self) -> bool:
        """Whether a score can depend on incomplete phrases."""
        return self.hotwords is not None or (self.phrases is not None and self.phrases.unknown)

    def score(self, h: Hypothesis) -> float:
        """The joint score of a hypothesis from its parts."""
        config = self.config
        acoustic = (1 - config.ctc_weight) * h.attention + config.ctc_weight * h.ctc
        return acoustic + config.lm_weight * h.lm + config.length_bonus * len(h.tokens) + h.hotwords

    def candidates(
        self,
        live: Sequence[Hypothesis],
        log_p_BV: FloatArray,
        lm_BV: Scores | None,
        ctc: CtcScorer | None,
        ends: bool = True,
    ) -> Candidates:
        """All tokens, or with CTC the best by the other scorers.

        `ends`: <eos> ends the text; else it means that there is no further token yet, and an incomplete phrase has no
        cost. The cost of other speech is charged in both cases, since it may be charged for any token.
        """
        attention_BV = _column([h.attention for h in live]) + log_p_BV.astype(np.float64)
        lm_BV = np.zeros_like(attention_BV) if lm_BV is None else _column([h.lm for h in live]) + lm_BV
        hotwords_BV = self._hotwords(live, attention_BV, ends)
        joint_BV = (1 - self.config.ctc_weight) * attention_BV + hotwords_BV
        if self.config.lm_weight:
            joint_BV += self.config.lm_weight * lm_BV
        joint_BV += self.config.length_bonus * (len(live[0].tokens) + 1)
        joint_BV[:, self.end] -= self.config.length_bonus  # <eos> has no bonus
        joint_BV[:, 0] = -np.inf  # only CTC has a blank
        if ctc is None:
            every_BV = np.broadcast_to(np.arange(joint_BV.shape[1]), joint_BV.shape)
            return Candidates(every_BV, joint_BV, attention_BV, np.zeros_like(joint_BV), lm_BV, hotwords_BV)
        token_BK = self._pre_beam(joint_BV)
        joint_BK, *parts = (np.take_along_axis(x, token_BK, 1) for x in (joint_BV, attention_BV, lm_BV, hotwords_BV))
        ctc_BK = extensions(ctc.state, token_BK, ctc.log_ctc_TV)
        ctc_BK = np.where(token_BK == self.end, whole(ctc.state)[:, None], ctc_BK)
        return Candidates(token_BK, joint_BK + self.config.ctc_weight * ctc_BK, parts[0], ctc_BK, parts[1], parts[2])

    def rescored(self, h: Hypothesis, lm: LanguageModel) -> Hypothesis:
        """A text that has ended, with the score of a language model that was not part of the search."""
        state, total, before = lm.start(1), 0.0, self.end
        for token in (*h.tokens, self.end):
            log_p_BV, state = lm.step(np.array([before]), state)
            total, before = total + float(log_p_BV[0, token]), token
        h = replace(h, lm=total)
        return replace(h, score=self.score(h))

    def settled(self, live: Sequence[Hypothesis], found: Candidates) -> Scores:
        """The joint scores without the boosts of incomplete phrases (B, K)."""
        settled_BK = found.joint_BK
        if self.hotwords is not None:
            lent_BV = self.hotwords.lent([h.node for h in live])
            settled_BK = settled_BK - np.take_along_axis(lent_BV, found.token_BK, 1)
        if self.phrases is not None:
            lent_BV = self.phrases.lent([h.phrases for h in live])
            settled_BK = settled_BK - np.take_along_axis(lent_BV, found.token_BK, 1)
        return settled_BK

    def _pre_beam(self, joint_BV: Scores) -> IntArray:
        """The best tokens of each hypothesis by all scorers but CTC, and <eos>, in the order of the classes."""
        published = self.config.policy == "published"
        classes, most = joint_BV.shape[1], 1 + (int(PUBLISHED_PRE_BEAM * self.config.beam) if published else PRE_BEAM)
        if most >= classes:
            return np.broadcast_to(np.arange(classes), joint_BV.shape)
        ranked_BV = joint_BV.copy()
        ranked_BV[:, self.end] = np.inf
        best_BK = np.argpartition(ranked_BV, classes - most, axis=1)[:, classes - most :]
        return np.sort(best_BK, axis=1)

    def _hotwords(self, live: Sequence[Hypothesis], like_BV: Scores, ends: bool) -> Scores:
        score_BV = np.zeros_like(like_BV) + _column([h.hotwords for h in live])
        if self.hotwords is not None:
            score_BV += self.hotwords.scores([h.node for h in live])
        if self.phrases is not None:
            phrases_BV = self.phrases.scores([h.phrases for h in live])
            if not (ends or self.phrases.unknown):
                phrases_BV[:, self.end] = 0.0
            score_BV += phrases_BV
        return score_BV


def _column(values: list[float]) -> Scores:
    return np.array(values)[:, None]
