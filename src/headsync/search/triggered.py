"""Triggered attention, searched frame by frame: CTC proposes, the decoder scores, the joint score decides.

A prefix beam search goes over the frames of CTC. Of every prefix it carries r^n and r^b, the log probabilities of
having said just that by frame t, ending in the last token or in blank (see `headsync.search.ctc_prefix`). A token
enters where CTC gives it some probability; the frame at which it does is its trigger, a_i, and the decoder scores it
there, looking as far as a_i and `ahead` frames more. So a frame is taken when these have come, or when no more will:
each frame once, in order, and whatever else has arrived is not looked at. Hence the arrival of frames changes nothing.

A token may be proposed too early, by a probability that is small but not too small. Where more than half of all that
speaks for a prefix enters later, that is its new trigger, and the decoder is asked again. What was written behind it
meanwhile keeps the scores that it has.

The beam holds the best prefixes by CTC and the best by the joint score, so up to twice as many as `beam` says: a token
that the decoder doubts is not lost before more has been heard. Prefixes of a beam differ in length; those of one length
are one call of the decoder. At the end all of them are asked for <eos>, which sees everything.

Shapes: B prefixes, V classes (0 is blank), N layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from headsync.audio import FloatArray
from headsync.config import DecodingConfig
from headsync.engine import NO_LIMIT, Engine, IntArray, Memory, State, Window
from headsync.search.ctc_prefix import IMPOSSIBLE
from headsync.search.hotwords import Hotwords
from headsync.search.hypothesis import Beam, Heard, Hypothesis
from headsync.search.joint import Joint
from headsync.search.look import Look, looks
from headsync.search.scorers import LanguageModel, Scores
from headsync.search.step import join_rows
from headsync.streaming import take_rows

LEAST = 1e-3  # a token that CTC gives less does not enter: hardly any decoder would make up for it, and each entry asks
NEVER = -np.inf

Tokens = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Prefix:
    """A hypothesis, and what it takes to go on with it; the states are those of one row."""

    h: Hypothesis
    state: State  # of the decoder, before it is told the last token
    label: float = NEVER  # r^n
    blank: float = 0.0  # r^b
    language: State | None = None  # of the language model
    outlook_V: Scores | None = None  # what that expects next; None: it has not been told the last token
    parent: Prefix | None = None  # behind which it enters at the present frame, the decoder not having been asked yet

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


class Entry(NamedTuple):
    """All the paths by which a token enters behind a prefix at a frame."""

    parent: Prefix
    log_p: float


class Answer(NamedTuple):
    """What the decoder says after a prefix."""

    log_p_V: Scores
    end_NH: IntArray
    state: State
    look: Look | None


@dataclass(frozen=True)
class TriggeredSearch:
    """What does not change during a search."""

    engine: Engine
    config: DecodingConfig
    end: int  # the token <sos>/<eos>
    ahead: int  # frames that the decoder sees past a trigger
    language: LanguageModel | None = None
    hotwords: Hotwords | None = None

    @cached_property
    def joint(self) -> Joint:
        return Joint(self.config, self.end, self.hotwords)

    def start(self, looking: bool = False) -> TriggeredBeam:
        language = self.language.start(1) if self.language and self.config.lm_weight else None
        first = Hypothesis(looks=() if looking else None)
        return TriggeredBeam(self._told([Prefix(first, self.engine.start_decoder(1), language=language)]))

    def advance(self, beam: TriggeredBeam, heard: Heard, final: bool) -> TriggeredBeam:
        """Take the frames whose look-ahead has come; at the end all of them, and let the texts end."""
        while beam.frames + (0 if final else self.ahead) < heard.evidence.frames:
            beam = self._frame(beam, heard)
        return self._finish(beam, heard) if final else beam

    def close(self, beam: TriggeredBeam, heard: Heard, frames: int) -> tuple[TriggeredBeam, int]:
        """Every frame is searched as it comes, and the silence with it; nothing enters there but what CTC proposes."""
        return self.advance(beam, heard, final=True), heard.evidence.frames

    def _frame(self, beam: TriggeredBeam, heard: Heard) -> TriggeredBeam:
        """One frame more: CTC moves on, what enters and has a chance asks the decoder, and the best are kept."""
        log_ctc_V = np.maximum(heard.log_ctc_TV[beam.frames].astype(np.float64), IMPOSSIBLE)
        before = {prefix.h.tokens: prefix for prefix in beam.prefixes}
        entries = self._entries(before, log_ctc_V, beam.frames)
        every = {**before, **entries}
        now = [self._moved(tokens, before.get(tokens), entries.get(tokens), log_ctc_V) for tokens in every]
        scored = self._scored(self._hopeful(now), heard, beam.frames)
        return TriggeredBeam(self._told(self._best(scored)), beam.frames + 1)

    def _entries(self, before: dict[Tokens, Prefix], log_ctc_V: Scores, frame: int) -> dict[Tokens, Entry]:
        """What enters: behind every prefix the tokens that CTC proposes, and those that have entered already."""
        most = 5 + self.config.most_tokens_per_frame * frame
        proposed = [
            (*tokens, token) for token in self._proposed(log_ctc_V) for tokens in before if len(tokens) < most
        ]  # fmt: skip
        known = [tokens for tokens in before if tokens and tokens[:-1] in before]
        entries = {tokens: _entry(before[tokens[:-1]], tokens[-1], log_ctc_V) for tokens in (*known, *proposed)}
        return {tokens: entry for tokens, entry in entries.items() if entry.log_p > NEVER}

    def _proposed(self, log_ctc_V: Scores) -> list[int]:
        """The most probable tokens of a frame; of more than these behind one prefix few would stay in the beam."""
        tokens = (1 + np.flatnonzero(log_ctc_V[1 : self.end] >= np.log(LEAST))).tolist()
        return sorted(tokens, key=lambda token: -log_ctc_V[token])[: 2 * self.config.beam]

    def _moved(self, tokens: Tokens, old: Prefix | None, entry: Entry | None, log_ctc_V: Scores) -> Prefix:
        """A prefix after a frame; one that is new, or enters rather now than before, has its trigger here."""
        stays = old.label + log_ctc_V[tokens[-1]] if old and tokens else NEVER
        blank = old.either + log_ctc_V[0] if old else NEVER
        prefix, enters = old, NEVER
        if entry is not None:
            enters = entry.log_p
            if enters > np.logaddexp(stays, blank):
                prefix = self._entered(entry.parent, tokens[-1], old)
        assert prefix is not None
        label = float(np.logaddexp(stays, enters))
        h = replace(prefix.h, ctc=float(np.logaddexp(label, blank)))
        return replace(prefix, h=replace(h, score=self.joint.score(h)), label=label, blank=float(blank))

    def _entered(self, parent: Prefix, token: int, old: Prefix | None) -> Prefix:
        """A prefix with one token more, as far as that can be said without the decoder."""
        h = replace(parent.h, tokens=(*parent.h.tokens, token))
        if parent.outlook_V is not None:
            h = replace(h, lm=h.lm + float(parent.outlook_V[token]))
        if self.hotwords is not None:
            boost = float(self.hotwords.scores([h.node])[0, token])
            h = replace(h, hotwords=h.hotwords + boost, node=self.hotwords.after(h.node, token))
        if old is None:
            return Prefix(h, parent.state, language=parent.language, parent=parent)
        return replace(old, h=h, parent=parent)

    def _hopeful(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """Without those that would not stay in the beam, even if the decoder were sure of them."""
        certain = sorted((prefix.h.score for prefix in prefixes if prefix.parent is None), reverse=True)
        least = certain[self.config.beam - 1] if len(certain) >= self.config.beam else NEVER
        by_ctc = {*self._by_ctc(prefixes)}
        return [one for one in prefixes if one.parent is None or one.h.score >= least or one in by_ctc]

    def _scored(self, prefixes: Sequence[Prefix], heard: Heard, frame: int) -> list[Prefix]:
        """Those that enter, with what the decoder says; it is asked once for all behind the same prefix."""
        parents = {prefix.parent.h.tokens: prefix.parent for prefix in prefixes if prefix.parent is not None}
        answers = self._ask(list(parents.values()), heard, frame + 1 + self.ahead)
        sure = {
            tokens: self._sure(parents[tokens], answer.log_p_V, heard.log_ctc_TV[frame])
            for tokens, answer in answers.items()
        }
        scored = []
        for prefix in prefixes:
            if (parent := prefix.parent) is not None:
                answer, token = answers[parent.h.tokens], prefix.h.tokens[-1]
                h = self._stepped(prefix.h, token, answer)
                confidences = (*h.confidences, float(sure[parent.h.tokens][token]))
                h = replace(h, halts=(*h.halts, frame + 1), confidences=confidences, looks=h.looked(answer.look))
                prefix = replace(prefix, h=h, state=answer.state, parent=None)
            scored.append(prefix)
        return scored

    def _stepped(self, h: Hypothesis, token: int, answer: Answer) -> Hypothesis:
        """With the decoder's score of a token."""
        attention, consumed = h.attention + float(answer.log_p_V[token]), h.consumed + int(answer.end_NH.sum())
        h = replace(h, attention=attention, consumed=consumed, steps=h.steps + 1)
        return replace(h, score=self.joint.score(h))

    def _sure(self, parent: Prefix, log_p_V: Scores, log_ctc_V: FloatArray) -> Scores:
        """How probable each token is behind a prefix, by all scorers, among all tokens."""
        weight = self.config.ctc_weight
        joint_V = (1 - weight) * log_p_V + weight * np.maximum(log_ctc_V, IMPOSSIBLE)
        if parent.outlook_V is not None:
            joint_V += self.config.lm_weight * parent.outlook_V
        if self.hotwords is not None:
            joint_V += self.hotwords.scores([parent.h.node])[0]
        joint_V[[0, self.end]] = NEVER
        p_V = np.exp(joint_V - joint_V.max())
        return np.asarray(p_V / p_V.sum())

    def _ask(self, prefixes: Sequence[Prefix], heard: Heard, limit: int) -> dict[Tokens, Answer]:
        """The decoder after each prefix; where the limit is not reached, no more frames will come."""
        frames = min(limit, heard.evidence.frames)
        memory = Memory(*(part[:, :, :, :frames] for part in heard.memory))
        answers = {}
        for _, group in groupby(sorted(prefixes, key=_length), _length):
            rows = list(group)
            window = Window(*(np.full(len(rows), value) for value in (limit, frames, limit > frames)))
            state = join_rows(*(prefix.state for prefix in rows))
            decoded = self.engine.decode(self._last(rows), memory, state, window)
            assert decoded.ready_B.all()
            look_B = looks(decoded, rows[0].h.looks is not None)
            said_BV = self.joint.decoder(decoded.log_p_BV)
            for n, prefix in enumerate(rows):
                state = take_rows(decoded.state, [n])
                answers[prefix.h.tokens] = Answer(said_BV[n], decoded.end_BNH[n], state, look_B[n])
        return answers

    def _told(self, prefixes: Sequence[Prefix]) -> tuple[Prefix, ...]:
        """The language model is told the last tokens that it does not know."""
        waiting = [prefix for prefix in prefixes if prefix.outlook_V is None]
        new = {prefix: prefix.language for prefix in waiting if prefix.language is not None}
        if not new or self.language is None:
            return tuple(prefixes)
        outlook_BV, state = self.language.step(self._last(list(new)), join_rows(*new.values()))
        told = {
            prefix: replace(prefix, outlook_V=outlook_BV[n], language=take_rows(state, [n]))
            for n, prefix in enumerate(new)
        }
        return tuple(told.get(prefix, prefix) for prefix in prefixes)

    def _best(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """The best by CTC and the best by the joint score, by which they are ordered."""
        by_score = sorted(prefixes, key=lambda prefix: -prefix.h.score)
        kept = {*by_score[: self.config.beam], *self._by_ctc(prefixes)}
        return [prefix for prefix in by_score if prefix in kept]

    def _by_ctc(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        return sorted(prefixes, key=lambda prefix: -prefix.h.ctc)[: self.config.beam]

    def _finish(self, beam: TriggeredBeam, heard: Heard) -> TriggeredBeam:
        """All texts end; what CTC says of each is that it is all."""
        answers = self._ask(beam.prefixes, heard, NO_LIMIT)
        ended = [self._ended(prefix, answers[prefix.h.tokens]) for prefix in beam.prefixes]
        return TriggeredBeam((), beam.frames, tuple(sorted(ended, key=lambda h: -h.score)))

    def _ended(self, prefix: Prefix, answer: Answer) -> Hypothesis:
        h = prefix.h
        if prefix.outlook_V is not None:
            h = replace(h, lm=h.lm + float(prefix.outlook_V[self.end]))
        if self.hotwords is not None:
            h = replace(h, hotwords=h.hotwords + float(self.hotwords.scores([h.node])[0, self.end]))
        return self._stepped(h, self.end, answer)

    def _last(self, prefixes: Sequence[Prefix]) -> IntArray:
        return np.array([prefix.h.tokens[-1] if prefix.h.tokens else self.end for prefix in prefixes])


def _entry(parent: Prefix, token: int, log_ctc_V: Scores) -> Entry:
    """A token follows itself only after a blank."""
    phi = parent.blank if parent.h.tokens[-1:] == (token,) else parent.either
    return Entry(parent, phi + float(log_ctc_V[token]))


def _length(prefix: Prefix) -> int:
    return len(prefix.h.tokens)
