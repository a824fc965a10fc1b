"""The published searches over the whole decoder, literally; a beam of 1 is greedy.

    LabelByLabel    Algorithm 1 with <eos> and the joint score; the same loop for attention that fires by itself and for
                    the offline system, which differ in the limit of a step and in the frames that CTC scores
    FrameByFrame    triggered attention: a prefix search over the frames of CTC
    BlockByBlock    BS-DEC: decode until a block is exhausted, go back, wait for the next block

The whole utterance is known, and every step is computed when its turn comes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from headsync.nn.model import Model
from reference import Array
from reference.ctc import blanks_follow, extended, prefix_scores
from reference.decoder import Text, WholeDecoder

ACCUMULATION = ("acs", "dacs", "hs-dacs")


@dataclass(frozen=True)
class Published:
    """A model, an utterance, and the settings of section 5.1."""

    model: Model
    mechanism: str
    frames: torch.Tensor  # (T, width), of the encoder
    log_ctc: Array  # (T, classes)
    M: int
    ctc_weight: float = 0.0
    beam: int = 1
    tokens_per_frame: float = math.inf

    @property
    def T(self) -> int:  # noqa: N802
        return len(self.frames)

    @cached_property
    def decoder(self) -> WholeDecoder:
        return WholeDecoder(self.model, self.mechanism, self.frames)

    def r(self, text: Text) -> float:
        return self.decoder.r(text)

    def most(self, frames: int) -> float:
        return 5 + self.tokens_per_frame * frames

    def joint(self, attention: float, ctc: float) -> float:
        return (1 - self.ctc_weight) * attention + (self.ctc_weight * ctc if self.ctc_weight else 0.0)

    def scored(self, log_p: Array) -> list[int]:
        """The tokens that CTC scores: those best by the decoder, half as many again as the beam, and <eos>."""
        eos = self.model.start
        best = sorted(range(1, eos), key=lambda token: -log_p[token])
        return sorted([*(best[: self.beam * 3 // 2] if self.ctc_weight else best), eos])

    def decode(self) -> Text:
        raise NotImplementedError


class LabelByLabel(Published):
    """Algorithm 1."""

    def decode(self) -> Text:
        """The text of the utterance; `joint` is then its score on all T frames."""
        eos, live, ended, n = self.model.start, [Text()], [], 0
        while live and len(live[0].y) < self.most(self.T):
            steps = [self.step(text) for text in live]
            n = min(max(n, *(reach for _, reach, _ in steps)), self.T)
            every: list[tuple[float, int, int, Text]] = []
            for row, (text, (log_p, _, after)) in enumerate(zip(live, steps, strict=True)):
                for token in self.scored(log_p):
                    attention = text.attention + float(log_p[token])
                    joint = self.joint(attention, self._ctc(text.y, token, n))
                    grown = replace(after, attention=attention, joint=joint)
                    if token != eos:
                        grown = replace(grown, y=(*text.y, token))
                    every.append((-joint, row, token, grown))
            best = sorted(every, key=lambda one: one[:3])[: self.beam]
            ended += [self._on_all_frames(text) for _, _, token, text in best if token == eos]
            live = [text for _, _, token, text in best if token != eos]
        return max(ended or [self._unfinished(text) for text in live], key=lambda text: text.joint)

    def step(self, text: Text) -> tuple[Array, int, Text]:
        """log p of y_i, up to which frame CTC scores it, and the text with t_i, whose y_i is not chosen yet."""
        limit = min(self._t(text) + self.M, self.T) if self.mechanism in ACCUMULATION else self.T
        log_p, furthest, after = self.decoder.step(text, limit)
        reach = limit if self.mechanism in ACCUMULATION else furthest + self.M
        t_i = max(furthest, self._t(text))
        return log_p, reach, replace(after, t=(*text.t, t_i))

    def _t(self, text: Text) -> int:
        return text.t[-1] if text.t else 0

    def _ctc(self, y: tuple[int, ...], token: int, n: int) -> float:
        """The CTC score of y and the token in the first n frames; for <eos>, that of exactly y."""
        if not self.ctc_weight:
            return 0.0
        if token == self.model.start:
            return float(prefix_scores(y, self.log_ctc[:n])[1])
        return float(prefix_scores((*y, token), self.log_ctc[:n])[0])

    def _on_all_frames(self, text: Text) -> Text:
        text = replace(text, t=text.t[:-1])  # <eos> is no token
        return replace(text, joint=self.joint(text.attention, float(prefix_scores(text.y, self.log_ctc)[1])))

    def _unfinished(self, text: Text) -> Text:
        return replace(text, joint=self.joint(text.attention, float(prefix_scores(text.y, self.log_ctc)[0])))


@dataclass(frozen=True)
class FrameByFrame(Published):
    """Triggered attention; `ahead` frames past its trigger belong to a step."""

    ahead: int = 0

    def decode(self) -> Text:
        beam = {(): Text(label=(-np.inf,), blank=(0.0,))}
        for t in range(self.T):
            beam = self._kept(self._frame(beam, t))
        ended = [self._stepped(text, text, self.model.start, self.T) for text in beam.values()]
        return max(ended, key=lambda text: text.joint)

    def _frame(self, beam: dict[tuple[int, ...], Text], t: int) -> list[Text]:
        """Every prefix of the beam, and every token that enters after one, at frame t, counted from 0."""
        p = self.log_ctc[t]
        likely = sorted((c for c in range(1, self.model.start) if p[c] >= math.log(1e-3)), key=lambda c: -p[c])
        new = [(*y, c) for y in beam for c in likely[: 2 * self.beam] if len(y) < self.most(t)]
        moved = [self._moved(y, beam, t) for y in dict.fromkeys([*beam, *new])]
        return [text for text in moved if text is not None]

    def _moved(self, y: tuple[int, ...], beam: dict[tuple[int, ...], Text], t: int) -> Text | None:
        """r^n and r^b of a prefix after frame t. If more enters here than before, it is triggered here."""
        old, parent, p = beam.get(y), beam.get(y[:-1]) if y else None, self.log_ctc[t]
        stays = old.label[-1] + p[y[-1]] if old and y else -np.inf
        blank = float(np.logaddexp(old.label[-1], old.blank[-1]) + p[0]) if old else -np.inf
        enters = -np.inf
        if parent is not None:
            either = parent.blank[-1] if y[-2:-1] == y[-1:] else np.logaddexp(parent.label[-1], parent.blank[-1])
            enters = either + p[y[-1]]
        text = old
        if parent is not None and enters > np.logaddexp(stays, blank):
            text = self._stepped(parent, parent, y[-1], t + 1 + self.ahead)
            text = replace(text, y=y, t=(*parent.t, t + 1))
        if text is None:  # a token that repeats needs a blank before
            return None
        text = replace(text, label=(float(np.logaddexp(stays, enters)),), blank=(blank,))
        return replace(text, joint=self.joint(text.attention, self._whole(text)))

    def _stepped(self, text: Text, of: Text, token: int, limit: int) -> Text:
        """With the decoder's score of a token on the frames up to the limit; the CTC score is that of `of`."""
        log_p, _, after = self.decoder.step(text, limit)
        after = replace(after, attention=text.attention + float(log_p[token]))
        return replace(after, joint=self.joint(after.attention, self._whole(of)))

    def _kept(self, texts: list[Text]) -> dict[tuple[int, ...], Text]:
        """The best by CTC, and the best by the joint score."""
        by_joint = sorted(texts, key=lambda text: -text.joint)[: self.beam]
        by_ctc = sorted(texts, key=lambda text: -self._whole(text))[: self.beam]
        return {text.y: text for text in (*by_joint, *by_ctc)}

    def _whole(self, text: Text) -> float:
        return float(np.logaddexp(text.label[-1], text.blank[-1]))


@dataclass(frozen=True)
class BlockByBlock(Published):
    """BS-DEC; a block is what the encoder emits at once."""

    block: int = 1

    def decode(self) -> Text:
        live = [Text(label=(-np.inf,), blank=(0.0,))]
        for first in range(0, self.T, self.block):
            live = self._decode_block([self._heard(text, first) for text in live], min(first + self.block, self.T))
        ended: list[Text] = []
        while live and len(live[0].y) < self.most(self.T):
            best = self._longer(live, self.T)
            ended += [text for token, text in best if token == self.model.start]
            live = [text for token, text in best if token != self.model.start]
        return max(ended or live, key=lambda text: text.joint)

    def _heard(self, text: Text, first: int) -> Text:
        """CTC after the frames of a new block: only blanks follow what was written."""
        label, blank = blanks_follow(text.label, text.blank, self.log_ctc[first : first + self.block])
        return replace(text, label=tuple(label), blank=tuple(blank))

    def _decode_block(self, live: list[Text], frames: int) -> list[Text]:
        """Until one of the best texts ends or repeats one of its tokens; then back by one step of the block."""
        before = None
        while len(live[0].y) < self.most(frames):
            best = self._longer(live, frames)
            if any(token == self.model.start or token in text.y[:-1] for token, text in best):
                break
            before, live = live, [text for _, text in best]
        return live if before is None else before

    def _longer(self, live: list[Text], frames: int) -> list[tuple[int, Text]]:
        """The best continuations on the frames so far, <eos> among them."""
        every: list[tuple[float, int, int, Text]] = []
        for row, text in enumerate(live):
            log_p, furthest, after = self.decoder.step(text, frames)
            for token in self.scored(log_p):
                grown = replace(after, attention=text.attention + float(log_p[token]))
                if token == self.model.start:
                    psi = np.logaddexp(text.label[-1], text.blank[-1])
                else:
                    psi, label, blank = extended(text.label, text.blank, text.y[-1:] == (token,), token, self.log_ctc)
                    grown = replace(grown, y=(*text.y, token), t=(*text.t, furthest), label=label, blank=blank)
                grown = replace(grown, joint=self.joint(grown.attention, float(psi)))
                every.append((-grown.joint, row, token, grown))
        return [(token, text) for _, _, token, text in sorted(every, key=lambda one: one[:3])[: self.beam]]
