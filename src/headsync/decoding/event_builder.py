"""Hypotheses to events: the new part of the text, the committed part, and the times of its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headsync.config import DecodingConfig
from headsync.decoding.build import Texts
from headsync.decoding.cost import cost_ratio
from headsync.decoding.hypothesis import Hypothesis, SpeechFrames
from headsync.decoding.phrase_text import PhraseText, common_prefix
from headsync.decoding.word_times import timed_words
from headsync.events import Alternative, Attention, Event, Final, Partial, Word
from headsync.frontend.frame_rate import LOG_MEL, FrameRate
from headsync.text.vocabulary import Span


class Emitted(NamedTuple):
    """What the events of an utterance have reported so far."""

    text: str = ""
    committed_words: int = 0
    traced_tokens: int = 0  # tokens that had an `Attention` event


NOTHING_EMITTED = Emitted()


class EventContext(NamedTuple):
    """An utterance at a point in the stream."""

    utterance: int
    first_frame: int  # of the utterance, counted in the stream
    speech: SpeechFrames
    time_seconds: float  # audio received so far


@dataclass(frozen=True)
class EventBuilder:
    """The events of a stream.

    `trace`: with an `Attention` event for each token. `always_final`: an utterance without text has a `Final` as well.
    """

    printed: PhraseText
    config: DecodingConfig
    trace: bool = False
    always_final: bool = False
    rate: FrameRate = LOG_MEL

    def partial(self, beam: Texts, context: EventContext, emitted: Emitted) -> tuple[list[Event], Emitted]:
        """The new events of an open utterance.

        Words that all hypotheses share are committed, since every later hypothesis descends from these. If tokens are
        parts of words, the last word may still grow until the next one begins.
        """
        tokens = common_prefix([h.tokens for h in (*beam.live, *beam.ended)])
        events: list[Event] = list(self._traces(beam.best, context, emitted, len(tokens)))
        spans, committed = self.printed.words(beam.best.tokens), len(self.printed.committed(tokens))
        text = _text(spans)
        if (text, committed) != (emitted.text, emitted.committed_words):
            words = self._words(spans, beam.best, context)
            delay = _delay(words, context.time_seconds)
            events.append(Partial(context.utterance, text, words, delay, context.time_seconds, committed))
        return events, Emitted(text, committed, max(emitted.traced_tokens, len(tokens)))

    def final(self, beam: Texts, context: EventContext, emitted: Emitted) -> list[Event]:
        """The last events of an utterance; none if there is no text to show or remove."""
        best = beam.best
        if not (self.printed.ended(best.tokens) or emitted.text or self.always_final):
            return []
        traces = self._traces(best, context, emitted, len(best.tokens))
        return [*traces, self._final(beam, context)]

    def _final(self, beam: Texts, context: EventContext) -> Final:
        best, spans = beam.best, self.printed.ended(beam.best.tokens)
        words = self._words(spans, best, context)
        layers, heads = context.speech.memory.keys_BNHTD.shape[1:3]
        cost = cost_ratio(best.consumed, layers=layers, heads=heads, steps=best.steps, frames=context.speech.frames)
        halts = tuple(context.first_frame + t for t in best.halts)
        delay = _delay(words, context.time_seconds)
        others = tuple(
            Alternative(_text(self.printed.ended(h.tokens)), best.score - h.score)
            for h in beam.nbest(self.config.nbest)[1:]
        )
        shown = context.utterance, _text(spans), words, delay, context.time_seconds
        return Final(*shown, halts, cost, others, best.stops)

    def _traces(self, best: Hypothesis, context: EventContext, emitted: Emitted, tokens: int) -> list[Attention]:
        """New attention events of the first `tokens` tokens, which are committed."""
        return [self._trace(best, context, n) for n in range(emitted.traced_tokens, tokens)] if self.trace else []

    def _trace(self, best: Hypothesis, context: EventContext, number: int) -> Attention:
        assert best.traces is not None
        trace, token = best.traces[number], self.printed.vocabulary.tokens[best.tokens[number] - 1]
        halts = tuple(self._seconds(context.first_frame + end) for end in trace.ends)
        start, frame = self._seconds(context.first_frame + trace.first), self.rate.seconds
        return Attention(context.utterance, number, token, start, frame, trace.weights, halts, context.time_seconds)

    def _seconds(self, frame: int) -> float:
        return round(frame * self.rate.seconds, 3)

    def _words(self, spans: Sequence[Span], hypothesis: Hypothesis, context: EventContext) -> tuple[Word, ...]:
        return timed_words(spans, hypothesis, context.speech, context.first_frame, self.config, self.rate)


def _text(spans: Sequence[Span]) -> str:
    return " ".join(span.text for span in spans)


def _delay(words: tuple[Word, ...], time_seconds: float) -> float:
    return max(0.0, time_seconds - words[-1].end_seconds) if words else 0.0
