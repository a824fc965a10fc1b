"""Triggered attention, searched frame by frame: CTC proposes, the decoder scores, the joint score decides.

A prefix beam search runs over the frames of CTC. Each prefix has r^n and r^b, the log probabilities of the prefix at
frame t, ending in its last token or in blank (see `headsync.decoding.ctc_prefix`). A token enters where CTC gives it
enough probability. The frame at which it enters is its trigger, a_i; the decoder scores it on the frames up to a_i and
`ahead` more. A frame is processed when these have arrived, or at the end: each frame once, in order, and without the
frames after them. The result therefore does not depend on how frames arrive.

A token may enter too early, with a small probability. If more than half of the probability of a prefix enters later,
that frame is its new trigger, and the decoder scores it again. Longer prefixes keep their scores.

The beam holds the best prefixes by CTC and the best by the joint score, up to twice `beam`: a token with a low decoder
score is kept until more frames have arrived. Prefixes of one length are one call of the decoder. At the end all
prefixes are scored with <eos>, on all frames.

Shapes: B prefixes, V classes (0 is blank), N layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from headsync.config import DecodingConfig
from headsync.decoding.attention_trace import AttentionTrace, traces
from headsync.decoding.cost import count_stops, sum_stops
from headsync.decoding.ctc_prefix import IMPOSSIBLE
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Beam, Hypothesis, SpeechFrames
from headsync.decoding.phrases import Phrases
from headsync.decoding.scoring import JointScorer
from headsync.engine import NO_LIMIT, Engine, IntArray, Memory, State, Window
from headsync.engine.state_tree import join_rows, take_rows
from headsync.frontend.audio import FloatArray
from headsync.lm import LanguageModel, Scores

LEAST = 1e-3  # lowest CTC probability with which a token enters
NEVER = -np.inf

Tokens = tuple[int, ...]
Entry = tuple["Prefix", float]  # log p of all paths by which a token enters after a prefix at a frame


@dataclass(frozen=True, eq=False)
class Prefix:
    """A hypothesis and its states, each of one row."""

    h: Hypothesis
    state: State  # of the decoder, before the last token
    label: float = NEVER  # r^n
    blank: float = 0.0  # r^b
    language: State | None = None  # of the language model
    outlook_V: Scores | None = None  # language model scores of the next token; None: not yet computed
    parent: Prefix | None = None  # if it enters at this frame and the decoder has not scored it yet

    @property
    def either(self) -> float:
        return float(np.logaddexp(self.label, self.blank))


class TriggeredBeam(NamedTuple):
    """The prefixes after some frames, best first; or the texts, when all have ended."""

    prefixes: tuple[Prefix, ...]
    frames: int = 0
    ended: tuple[Hypothesis, ...] = ()

    @property
    def live(self) -> tuple[Hypothesis, ...]:
        return tuple(prefix.h for prefix in self.prefixes)

    @property
    def best(self) -> Hypothesis:
        return self.nbest(1)[0]

    def nbest(self, most: int) -> tuple[Hypothesis, ...]:
        return Beam(self.live, self.ended, ()).nbest(most)


class Answer(NamedTuple):
    """One step of the decoder after a prefix."""

    log_p_V: Scores
    end_NH: IntArray
    state: State
    trace: AttentionTrace | None
    stops: list[int]


@dataclass(frozen=True)
class TriggeredSearch:
    """A frame-synchronous search with fixed settings; immutable, shared by every stream."""

    engine: Engine
    config: DecodingConfig
    end: int  # the token <sos>/<eos>
    ahead: int  # frames that the decoder sees past a trigger
    language: LanguageModel | None = None
    hotwords: Hotwords | None = None
    phrases: Phrases | None = None
    most_tokens_per_frame: float = 1.0  # of an utterance, besides five more

    @cached_property
    def joint(self) -> JointScorer:
        return JointScorer(self.config, self.end, self.hotwords, self.phrases)

    def start(self, trace: bool = False) -> TriggeredBeam:
        fuses = self.language and self.config.lm_weight and self.config.lm_use == "fusion"
        language = self.language.start(1) if self.language and fuses else None
        first = Hypothesis(traces=() if trace else None)
        return TriggeredBeam(self._with_lm([Prefix(first, self.engine.start_decoder(1), language=language)]))

    def advance(self, beam: TriggeredBeam, speech: SpeechFrames, final: bool) -> TriggeredBeam:
        """Process the frames whose look-ahead has arrived; at the end all frames, and end the texts."""
        while beam.frames + (0 if final else self.ahead) < speech.frames:
            beam = self._frame(beam, speech)
        return self._finish(beam, speech) if final else beam

    def close(self, beam: TriggeredBeam, speech: SpeechFrames, frames: int) -> tuple[TriggeredBeam, int]:
        """End the utterance after all frames: the silence has been searched already."""
        return self.advance(beam, speech, final=True), speech.frames

    def _frame(self, beam: TriggeredBeam, speech: SpeechFrames) -> TriggeredBeam:
        """Process one frame: CTC scores, then the decoder for tokens that enter, then pruning."""
        log_ctc_V = np.maximum(speech.log_ctc_TV[beam.frames].astype(np.float64), IMPOSSIBLE)
        before = {prefix.h.tokens: prefix for prefix in beam.prefixes}
        entries = self._entries(before, log_ctc_V, beam.frames)
        every = {**before, **entries}
        now = [self._moved(tokens, before.get(tokens), entries.get(tokens), log_ctc_V) for tokens in every]
        scored = self._scored(self._promising(now), speech, beam.frames)
        return TriggeredBeam(self._with_lm(self._best(scored)), beam.frames + 1)

    def _entries(self, before: dict[Tokens, Prefix], log_ctc_V: Scores, frame: int) -> dict[Tokens, Entry]:
        """The entries at a frame: after every prefix, proposed tokens and those that have entered before."""
        most = 5 + self.most_tokens_per_frame * frame
        likely = self._likely(log_ctc_V)
        proposed = [
            (*tokens, token)
            for tokens, prefix in before.items()
            if len(tokens) < most
            for token in self._possible(prefix.h, likely)[: 2 * self.config.beam]
        ]
        known = [tokens for tokens in before if tokens and tokens[:-1] in before]
        entries = {tokens: _entry(before[tokens[:-1]], tokens[-1], log_ctc_V) for tokens in (*known, *proposed)}
        return {tokens: entry for tokens, entry in entries.items() if entry[1] > NEVER}

    def _likely(self, log_ctc_V: Scores) -> list[int]:
        """The tokens that may enter at a frame, most probable first."""
        tokens = (1 + np.flatnonzero(log_ctc_V[1 : self.end] >= np.log(LEAST))).tolist()
        return sorted(tokens, key=lambda token: -log_ctc_V[token])

    def _possible(self, h: Hypothesis, tokens: list[int]) -> list[int]:
        """The tokens that the phrase list allows."""
        if self.phrases is None or not tokens:
            return tokens
        scores_V = self.phrases.scores([h.phrases])[0]
        return [token for token in tokens if scores_V[token] > NEVER]

    def _moved(self, tokens: Tokens, old: Prefix | None, entry: Entry | None, log_ctc_V: Scores) -> Prefix:
        """A prefix after a frame; if it is new, or most of its probability enters here, this is its trigger."""
        stays = old.label + log_ctc_V[tokens[-1]] if old and tokens else NEVER
        blank = old.either + log_ctc_V[0] if old else NEVER
        prefix, enters = old, NEVER
        if entry is not None:
            parent, enters = entry
            if enters > np.logaddexp(stays, blank):
                prefix = self._entered(parent, tokens[-1], old)
        assert prefix is not None
        label = float(np.logaddexp(stays, enters))
        h = replace(prefix.h, ctc=float(np.logaddexp(label, blank)))
        return replace(prefix, h=replace(h, score=self.joint.score(h)), label=label, blank=float(blank))

    def _entered(self, parent: Prefix, token: int, old: Prefix | None) -> Prefix:
        """A prefix with one more token, before the decoder has scored it."""
        h = replace(parent.h, tokens=(*parent.h.tokens, token))
        if parent.outlook_V is not None:
            h = replace(h, lm=h.lm + float(parent.outlook_V[token]))
        if self.hotwords is not None:
            boost = float(self.hotwords.scores([h.node])[0, token])
            h = replace(h, hotwords=h.hotwords + boost, node=self.hotwords.after(h.node, token))
        if self.phrases is not None:
            score = float(self.phrases.scores([h.phrases])[0, token])
            h = replace(h, hotwords=h.hotwords + score, phrases=self.phrases.after(h.phrases, token))
        if old is None:
            return Prefix(h, parent.state, language=parent.language, parent=parent)
        return replace(old, h=h, parent=parent)

    def _promising(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """Drop prefixes that would leave the beam even if the decoder gave them probability 1."""
        certain = sorted((prefix.h.score for prefix in prefixes if prefix.parent is None), reverse=True)
        least = certain[self.config.beam - 1] if len(certain) >= self.config.beam else NEVER
        by_ctc = {*self._by_ctc(prefixes)}
        return [one for one in prefixes if one.parent is None or one.h.score >= least or one in by_ctc]

    def _scored(self, prefixes: Sequence[Prefix], speech: SpeechFrames, frame: int) -> list[Prefix]:
        """With the decoder's scores of prefixes that enter; one call for all after the same prefix."""
        parents = {prefix.parent.h.tokens: prefix.parent for prefix in prefixes if prefix.parent is not None}
        answers = self._ask(list(parents.values()), speech, frame + 1 + self.ahead)
        probabilities = {
            tokens: self._probabilities(parents[tokens], answer.log_p_V, speech.log_ctc_TV[frame])
            for tokens, answer in answers.items()
        }
        scored = []
        for prefix in prefixes:
            if (parent := prefix.parent) is not None:
                answer, token = answers[parent.h.tokens], prefix.h.tokens[-1]
                h = self._stepped(prefix.h, token, answer)
                confidences = (*h.confidences, float(probabilities[parent.h.tokens][token]))
                h = replace(h, halts=(*h.halts, frame + 1), confidences=confidences, traces=h.with_trace(answer.trace))
                prefix = replace(prefix, h=h, state=answer.state, parent=None)
            scored.append(prefix)
        return scored

    def _stepped(self, h: Hypothesis, token: int, answer: Answer) -> Hypothesis:
        """With the decoder's score of a token."""
        attention, consumed = h.attention + float(answer.log_p_V[token]), h.consumed + int(answer.end_NH.sum())
        stops = sum_stops(h.stops, answer.stops)
        h = replace(h, attention=attention, consumed=consumed, steps=h.steps + 1, stops=stops)
        return replace(h, score=self.joint.score(h))

    def _probabilities(self, parent: Prefix, log_p_V: Scores, log_ctc_V: FloatArray) -> Scores:
        """The probability of each token after a prefix, by all scorers."""
        weight = self.config.ctc_weight
        joint_V = (1 - weight) * log_p_V + weight * np.maximum(log_ctc_V, IMPOSSIBLE)
        if parent.outlook_V is not None:
            joint_V += self.config.lm_weight * parent.outlook_V
        if self.hotwords is not None:
            joint_V += self.hotwords.scores([parent.h.node])[0]
        if self.phrases is not None:
            joint_V += self.phrases.scores([parent.h.phrases])[0]
        joint_V[[0, self.end]] = NEVER
        p_V = np.exp(joint_V - joint_V.max())
        return np.asarray(p_V / p_V.sum())

    def _ask(self, prefixes: Sequence[Prefix], speech: SpeechFrames, limit: int) -> dict[Tokens, Answer]:
        """One step of the decoder after each prefix; with fewer frames than the limit, the utterance has ended."""
        frames = min(limit, speech.frames)
        memory = Memory(*(part[:, :, :, :frames] for part in speech.memory))
        answers = {}
        for _, group in groupby(sorted(prefixes, key=_length), _length):
            rows = list(group)
            window = Window(*(np.full(len(rows), value) for value in (limit, frames, limit > frames)))
            state = join_rows(*(prefix.state for prefix in rows))
            decoded = self.engine.decode(self._last(rows), memory, state, window)
            assert decoded.ready_B.all()
            trace_B = traces(decoded, rows[0].h.traces is not None)
            log_p_BV, stops_B3 = decoded.log_p_BV.astype(np.float64), count_stops(decoded.end_BNH, window)
            for n, prefix in enumerate(rows):
                state = take_rows(decoded.state, [n])
                answers[prefix.h.tokens] = Answer(
                    log_p_BV[n], decoded.end_BNH[n], state, trace_B[n], stops_B3[n].tolist()
                )
        return answers

    def _with_lm(self, prefixes: Sequence[Prefix]) -> tuple[Prefix, ...]:
        """With the language model's scores after the last token."""
        waiting = [prefix for prefix in prefixes if prefix.outlook_V is None]
        new = {prefix: prefix.language for prefix in waiting if prefix.language is not None}
        if not new or self.language is None:
            return tuple(prefixes)
        outlook_BV, state = self.language.step(self._last(list(new)), join_rows(*new.values()))
        new_scores = {
            prefix: replace(prefix, outlook_V=outlook_BV[n], language=take_rows(state, [n]))
            for n, prefix in enumerate(new)
        }
        return tuple(new_scores.get(prefix, prefix) for prefix in prefixes)

    def _best(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """The best by CTC and the best by the joint score; ordered by the latter."""
        by_score = sorted(prefixes, key=lambda prefix: -prefix.h.score)
        kept = {*by_score[: self.config.beam], *self._by_ctc(prefixes)}
        return [prefix for prefix in by_score if prefix in kept]

    def _by_ctc(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        return sorted(prefixes, key=lambda prefix: -prefix.h.ctc)[: self.config.beam]

    def _finish(self, beam: TriggeredBeam, speech: SpeechFrames) -> TriggeredBeam:
        answers = self._ask(beam.prefixes, speech, NO_LIMIT)
        ended = [self._ended(prefix, answers[prefix.h.tokens]) for prefix in beam.prefixes]
        if self.language and self.config.lm_weight and self.config.lm_use == "rescoring":
            ended = [self.joint.rescored(h, self.language) for h in ended]
        return TriggeredBeam((), beam.frames, tuple(sorted(ended, key=lambda h: -h.score)))

    def _ended(self, prefix: Prefix, answer: Answer) -> Hypothesis:
        h = prefix.h
        if prefix.outlook_V is not None:
            h = replace(h, lm=h.lm + float(prefix.outlook_V[self.end]))
        if self.hotwords is not None:
            h = replace(h, hotwords=h.hotwords + float(self.hotwords.scores([h.node])[0, self.end]))
        if self.phrases is not None:
            h = replace(h, hotwords=h.hotwords - self.phrases.end_cost(h.phrases))
        return self._stepped(h, self.end, answer)

    def _last(self, prefixes: Sequence[Prefix]) -> IntArray:
        return np.array([prefix.h.tokens[-1] if prefix.h.tokens else self.end for prefix in prefixes])


def _entry(parent: Prefix, token: int, log_ctc_V: Scores) -> Entry:
    """A token repeats only after a blank."""
    phi = parent.blank if parent.h.tokens[-1:] == (token,) else parent.either
    return parent, phi + float(log_ctc_V[token])


def _length(prefix: Prefix) -> int:
    return len(prefix.h.tokens)
