"""Encoder blocks to events: opens and closes utterances, searches them, and tells what is new.

Between utterances only the last few frames are kept; inside one, its frames and its beam. So the cost of a second of
sound does not depend on how long the stream has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headsync.audio import FloatArray
from headsync.blocks import Block
from headsync.engine import BoolArray, Memory
from headsync.events import Alternative, Attention, Endpoint, Event, Final, Partial, Word
from headsync.framing import ENCODER_FRAME_SECONDS
from headsync.growing import Room
from headsync.measure.cost import cost_ratio
from headsync.search import endpoint
from headsync.search.build import Searcher, Texts
from headsync.search.evidence import NO_EVIDENCE, Evidence
from headsync.search.foreground import NOTHING_HEARD, Background
from headsync.search.hypothesis import Heard, Hypothesis
from headsync.tokens import Vocabulary
from headsync.words import timed_words


@dataclass(frozen=True)
class Utterance:
    """The decoder's side of a stream, as a value."""

    search: Searcher[Any]
    vocabulary: Vocabulary
    beam: Texts
    memory: Memory | None = None  # frames of this utterance, and a few before it; placed once it is open
    room: Room = field(default_factory=Room)  # for the frames of an open utterance to grow
    tail: Memory | None = None  # the last frames of an open utterance, not placed: they may be the next one's first
    log_ctc_TV: FloatArray | None = None  # of the same frames
    is_open: bool = False
    evidence: Evidence = NO_EVIDENCE
    background: Background = NOTHING_HEARD
    number: int = 0
    first_frame: int = 0  # of the utterance, counted in the stream
    told: tuple[str, int] = ("", 0)  # the text of the last event, and how many of its words are committed
    looking: bool = False  # whether to tell where the heads looked
    looked: int = 0  # tokens of the utterance of which that was told
    quiet_frames: int = 0  # since the stream began or the last utterance ended, as far as nothing is said

    @classmethod
    def start(cls, search: Searcher[Any], vocabulary: Vocabulary, looking: bool = False) -> Utterance:
        return cls(search, vocabulary, search.start(looking), looking=looking)

    def push(self, block: Block) -> tuple[list[Event], Utterance]:
        """Hear a block: partial texts, and a final one for every utterance that ends in it."""
        events: list[Event] = []
        stands_out_T, now = self._standing_out(block)
        done, config, evidence = 0, now.search.config, now.evidence
        for frame, (log_ctc_V, stands_out) in enumerate(zip(block.log_ctc_TV, stands_out_T, strict=True)):
            evidence = evidence.add(log_ctc_V, config, bool(stands_out))
            if reason := endpoint.ended(evidence, config):
                now = now._heard(block, done, frame + 1, evidence)
                ended, (final, now) = now.number, now._close(block.time_seconds)
                events += final
                events += [Endpoint(ended, reason, block.time_seconds)] if final else []
                done, evidence = frame + 1, now.evidence
            elif endpoint.idle(evidence):
                now = replace(now, quiet_frames=now.quiet_frames + 1)
                if now.quiet_frames == config.silence_frames:
                    events.append(Endpoint(now.number, "silence", block.time_seconds))
        now = now._heard(block, done, len(block.log_ctc_TV), evidence)
        if endpoint.idle(now.evidence):
            return events, now._forget(now._idle_frames(config.lead_frames))
        now = now._open(config.lead_frames)
        now = replace(now, beam=now.search.advance(now.beam, now._frames(), final=False))
        looks, now = now._looks(now.beam, len(now._stays()), block.time_seconds)
        partial, now = now._partial(block.time_seconds)
        return [*events, *looks, *partial], now

    def finish(self, time_seconds: float) -> tuple[list[Event], Utterance]:
        """No more will come: the final text of the utterance, if it has one, and the start of the next."""
        now = self._open(self.search.config.lead_frames)
        after = now._after(now.evidence.frames)
        if not now.is_open:
            return [], after
        return now._finals(now.search.advance(now.beam, now._frames(), final=True), time_seconds, after)

    def _close(self, time_seconds: float) -> tuple[list[Event], Utterance]:
        """The utterance has ended by itself: the next one begins with the rest of the silence that ended it."""
        now = self._open(self.search.config.lead_frames)
        beam, frames = now.search.close(now.beam, now._frames(), endpoint.belong(now.evidence, self.search.config))
        told = replace(now, evidence=now._frames().up_to(frames).evidence)
        return told._finals(beam, time_seconds, now._after(frames))

    def _finals(self, beam: Texts, time_seconds: float, after: Utterance) -> tuple[list[Event], Utterance]:
        """The events of a beam that is final, and what comes after it."""
        best = beam.best
        if not (self._text(best) or self.told[0]):  # nothing to say, and nothing to take back
            return [], after
        looks, now = self._looks(beam, len(best.tokens), time_seconds)
        return [*looks, now._final(beam, time_seconds)], replace(after, number=self.number + 1)

    def _after(self, frames: int) -> Utterance:
        """The next utterance, with what is left of this one behind so many frames."""
        left = self.evidence.frames - frames
        memory = log_ctc_TV = None
        if left:
            assert self.tail is not None
            assert self.log_ctc_TV is not None
            there = self.tail.keys_BNHTD.shape[3]
            memory, log_ctc_TV = _cut(self.tail, there - left, there), self.log_ctc_TV[frames:].copy()
        evidence = Evidence(label=self.evidence.label, frames=left)  # a token that is cut through does not begin again
        return replace(
            self, beam=self.search.start(self.looking), memory=memory, room=Room(), tail=None, log_ctc_TV=log_ctc_TV,
            is_open=False, evidence=evidence, told=("", 0), looked=0, quiet_frames=0,
            first_frame=self.first_frame + frames,
        )  # fmt: skip

    def _standing_out(self, block: Block) -> tuple[BoolArray, Utterance]:
        """Which frames stand out from the room; all of them where that is not asked or not known."""
        most = self.search.config.foreground_db
        if not most or block.level_T is None:
            return np.ones(len(block.log_ctc_TV), bool), self
        stands_out_T, background = self.background.hear(block.level_T, most)
        return stands_out_T, replace(self, background=background)

    def _heard(self, block: Block, first: int, end: int, evidence: Evidence) -> Utterance:
        new, room, tail = _cut(block.memory, first, end), self.room, self.tail
        if self.is_open:
            assert self.memory is not None
            assert tail is not None
            tail = self._tail(_joined(tail, new))
            new, room = self.room.append(self.memory, self.search.engine.place(new, self.evidence.frames))
        elif self.memory is not None:
            new = _joined(self.memory, new)
        log_ctc_TV = block.log_ctc_TV[first:end]
        if self.log_ctc_TV is not None:
            log_ctc_TV = np.concatenate([self.log_ctc_TV, log_ctc_TV])
        return replace(self, memory=new, room=room, tail=tail, log_ctc_TV=log_ctc_TV, evidence=evidence)

    def _tail(self, memory: Memory) -> Memory:
        """As much of it as may be left over when an utterance ends."""
        frames = memory.keys_BNHTD.shape[3]
        return _cut(memory, max(0, frames - endpoint.most_left(self.search.config)), frames)

    def _frames(self) -> Heard:
        assert self.memory is not None
        assert self.log_ctc_TV is not None
        return Heard(self.memory, self.log_ctc_TV, self.evidence)

    def _idle_frames(self, lead: int) -> int:
        """How many of the last frames an utterance may yet begin with: `lead` before what may be said next, or was."""
        return lead + (self.evidence.frames - self.evidence.spikes[0] if self.evidence.spikes else 0)

    def _forget(self, keep: int) -> Utterance:
        """Before an utterance only the last `keep` frames matter."""
        drop = max(0, self.evidence.frames - keep)
        if drop == 0 or self.memory is None:
            return self
        memory, log_ctc_TV, evidence = self._frames()
        return replace(
            self,
            memory=_cut(memory, drop, evidence.frames),
            log_ctc_TV=log_ctc_TV[drop:].copy(),
            evidence=evidence.forget(drop),
            first_frame=self.first_frame + drop,
        )

    def _open(self, lead: int) -> Utterance:
        """Before the first search: let the utterance begin `lead` frames before its first evidence."""
        if self.is_open or endpoint.idle(self.evidence):
            return self
        now = self._forget(self._idle_frames(lead))
        assert now.memory is not None
        return replace(now, is_open=True, memory=now.search.engine.place(now.memory, 0), tail=now._tail(now.memory))

    def _partial(self, time_seconds: float) -> tuple[list[Event], Utterance]:
        best = self.beam.best
        text, committed = self._text(best), self._committed()
        if (text, committed) == self.told:
            return [], self
        words = self._words(best)
        partial = Partial(self.number, text, words, _delay(words, time_seconds), time_seconds, committed)
        return [partial], replace(self, told=(text, committed))

    def _committed(self) -> int:
        """How many words stay: those that all hypotheses share, for every later one descends from these.

        Of tokens that spell words, the last word may still grow until the next one begins.
        """
        return len(self.vocabulary.words(self._stays(), complete=True))

    def _stays(self) -> tuple[int, ...]:
        return _shared([h.tokens for h in (*self.beam.live, *self.beam.ended)])

    def _looks(self, beam: Texts, stay: int, time_seconds: float) -> tuple[list[Event], Utterance]:
        """Where the heads looked for tokens that have come to stay: `stay` of them do by now."""
        if not self.looking:
            return [], self
        numbers = range(self.looked, stay)
        return [self._look(beam.best, n, time_seconds) for n in numbers], replace(self, looked=max(self.looked, stay))

    def _look(self, best: Hypothesis, number: int, time_seconds: float) -> Attention:
        assert best.looks is not None
        look, token = best.looks[number], self.vocabulary.tokens[best.tokens[number] - 1]
        halts = tuple(_seconds(self.first_frame + end) for end in look.ends)
        start, frame = _seconds(self.first_frame + look.first), ENCODER_FRAME_SECONDS
        return Attention(self.number, number, token, start, frame, look.weights, halts, time_seconds)

    def _final(self, beam: Texts, time_seconds: float) -> Final:
        best = beam.best
        words = self._words(best)
        assert self.memory is not None
        layers, heads = self.memory.keys_BNHTD.shape[1:3]
        sizes = {"layers": layers, "heads": heads, "steps": best.steps, "frames": self.evidence.frames}
        cost = cost_ratio(best.consumed, **sizes)
        halts = tuple(self.first_frame + t for t in best.halts)
        text, delay = self._text(best), _delay(words, time_seconds)
        further = beam.nbest(self.search.config.nbest)[1:]
        others = tuple(Alternative(self._text(h), best.score - h.score) for h in further)
        return Final(self.number, text, words, delay, time_seconds, halts, cost, others)

    def _text(self, hypothesis: Hypothesis) -> str:
        return self.vocabulary.decode(hypothesis.tokens)

    def _words(self, hypothesis: Hypothesis) -> tuple[Word, ...]:
        return timed_words(self.vocabulary, hypothesis, self.evidence, self.first_frame, self.search.config)


def _seconds(frame: int) -> float:
    return round(frame * ENCODER_FRAME_SECONDS, 3)


def _joined(*memories: Memory) -> Memory:
    return Memory(*(np.concatenate(parts, 3) for parts in zip(*memories, strict=True)))


def _cut(memory: Memory, first: int, end: int) -> Memory:
    """Some frames of a memory, copied as they lie, so that the rest can be forgotten."""
    return Memory(*(part[:, :, :, first:end].copy(order="K") for part in memory))


def _shared(texts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """What all of them begin with."""
    first, last = min(texts), max(texts)  # in alphabetical order all others lie between
    differs = [n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other]
    return first[: differs[0]] if differs else first


def _delay(words: tuple[Word, ...], time_seconds: float) -> float:
    return max(0.0, time_seconds - words[-1].end_seconds) if words else 0.0
