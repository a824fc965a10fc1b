"""Hypotheses to events: what of the text is new, what of it is committed, and where its words lie in the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headsync.config import DecodingConfig
from headsync.decoding.build import Texts
from headsync.decoding.cost import cost_ratio
from headsync.decoding.hypothesis import Hypothesis, SpeechFrames
from headsync.decoding.word_times import timed_words
from headsync.events import Alternative, Attention, Event, Final, Partial, Word
from headsync.frontend.frame_rate import LOG_MEL, FrameRate
from headsync.text.vocabulary import Vocabulary


class Emitted(NamedTuple):
    """What the events of an utterance have said so far."""

    text: str = ""
    committed_words: int = 0
    traced_tokens: int = 0  # tokens that had an `Attention` event


NOTHING_EMITTED = Emitted()


class Moment(NamedTuple):
    """An utterance at a point in the stream."""

    utterance: int
    first_frame: int  # of the utterance, counted in the stream
    speech: SpeechFrames
    time_seconds: float  # how much audio has arrived


@dataclass(frozen=True)
class EventBuilder:
    """The events of a stream.

    `trace`: with an `Attention` event for each token. `always_final`: an utterance without text has a `Final` as well.
    """

    vocabulary: Vocabulary
    config: DecodingConfig
    trace: bool = False
    always_final: bool = False
    rate: FrameRate = LOG_MEL

    def partial(self, beam: Texts, moment: Moment, emitted: Emitted) -> tuple[list[Event], Emitted]:
        """The events of an open utterance, as far as they are new."""
        tokens = _common_prefix([h.tokens for h in (*beam.live, *beam.ended)])
        events: list[Event] = list(self._traces(beam.best, moment, emitted, len(tokens)))
        text, committed = self._text(beam.best), self._committed_words(tokens)
        if (text, committed) != (emitted.text, emitted.committed_words):
            words = self._words(beam.best, moment)
            delay = _delay(words, moment.time_seconds)
            events.append(Partial(moment.utterance, text, words, delay, moment.time_seconds, committed))
        return events, Emitted(text, committed, max(emitted.traced_tokens, len(tokens)))

    def final(self, beam: Texts, moment: Moment, emitted: Emitted) -> list[Event]:
        """The last events of an utterance; none where no text is to be shown or taken back."""
        best = beam.best
        if not (self._text(best) or emitted.text or self.always_final):
            return []
        traces = self._traces(best, moment, emitted, len(best.tokens))
        return [*traces, self._final(beam, moment)]

    def _final(self, beam: Texts, moment: Moment) -> Final:
        best, words = beam.best, self._words(beam.best, moment)
        layers, heads = moment.speech.memory.keys_BNHTD.shape[1:3]
        cost = cost_ratio(best.consumed, layers=layers, heads=heads, steps=best.steps, frames=moment.speech.frames)
        halts = tuple(moment.first_frame + t for t in best.halts)
        delay = _delay(words, moment.time_seconds)
        others = tuple(Alternative(self._text(h), best.score - h.score) for h in beam.nbest(self.config.nbest)[1:])
        shown = moment.utterance, self._text(best), words, delay, moment.time_seconds
        return Final(*shown, halts, cost, others, best.stops)

    def _committed_words(self, tokens: tuple[int, ...]) -> int:
        """How many words stay: those that all hypotheses share, since every later one descends from these.

        Where tokens spell words, the last word may still grow until the next one begins.
        """
        return len(self.vocabulary.words(tokens, complete=True))

    def _traces(self, best: Hypothesis, moment: Moment, emitted: Emitted, tokens: int) -> list[Attention]:
        """The attention of the first `tokens` tokens, which stay, as far as it is new."""
        return [self._trace(best, moment, n) for n in range(emitted.traced_tokens, tokens)] if self.trace else []

    def _trace(self, best: Hypothesis, moment: Moment, number: int) -> Attention:
        assert best.traces is not None
        trace, token = best.traces[number], self.vocabulary.tokens[best.tokens[number] - 1]
        halts = tuple(self._seconds(moment.first_frame + end) for end in trace.ends)
        start, frame = self._seconds(moment.first_frame + trace.first), self.rate.seconds
        return Attention(moment.utterance, number, token, start, frame, trace.weights, halts, moment.time_seconds)

    def _seconds(self, frame: int) -> float:
        return round(frame * self.rate.seconds, 3)

    def _text(self, hypothesis: Hypothesis) -> str:
        return self.vocabulary.decode(hypothesis.tokens)

    def _words(self, hypothesis: Hypothesis, moment: Moment) -> tuple[Word, ...]:
        return timed_words(self.vocabulary, hypothesis, moment.speech, moment.first_frame, self.config, self.rate)


def _common_prefix(texts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    first, last = min(texts), max(texts)  # in alphabetical order all others lie between
    differs = [n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other]
    return first[: differs[0]] if differs else first


def _delay(words: tuple[Word, ...], time_seconds: float) -> float:
    return max(0.0, time_seconds - words[-1].end_seconds) if words else 0.0
