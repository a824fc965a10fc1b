"""Encoder blocks to events: the endpointer cuts the stream into utterances, and the search decodes each of them.

The state of a stream is bounded by its longest utterance, so the cost per second of audio does not grow with the
stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headsync.decoding.build import Searcher, Texts
from headsync.decoding.encoder_stream import Block
from headsync.decoding.event_builder import NOTHING_EMITTED, Emitted, EventBuilder, EventContext
from headsync.decoding.phrase_text import PhraseText
from headsync.decoding.speech_buffer import SpeechBuffer
from headsync.endpointing.endpointer import Endpointer, EndpointState
from headsync.events import Endpoint, Event, Reason
from headsync.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class DecoderStream:
    """The decoder state of a stream, as a value."""

    search: Searcher[Any]
    endpointer: Endpointer
    builder: EventBuilder
    beam: Texts
    buffer: SpeechBuffer
    endpoint: EndpointState
    utterance: int = 0
    emitted: Emitted = NOTHING_EMITTED

    @classmethod
    def start(
        cls, search: Searcher[Any], endpointer: Endpointer, vocabulary: Vocabulary, trace: bool = False
    ) -> DecoderStream:
        printed = PhraseText(vocabulary, search.phrases)
        builder = EventBuilder(printed, search.config, trace, endpointer.always_final, endpointer.rate)
        buffer = SpeechBuffer(search.engine, endpointer.most_left)
        return cls(search, endpointer, builder, search.start(trace), buffer, endpointer.start())

    def push(self, block: Block) -> tuple[list[Event], DecoderStream]:
        """Decode a block: the events of the open utterance, and of every utterance that ends in it."""
        events: list[Event] = []
        now, rest = self, block
        while len(rest.log_ctc_TV):
            decision, endpoint = now.endpointer.step(rest.log_ctc_TV, now.endpoint)
            now = replace(now, endpoint=endpoint, buffer=now.buffer.append(rest, decision.frames))
            if decision.endpoint == "silence":
                events.append(Endpoint(now.utterance, "silence", block.time_seconds))
            elif decision.endpoint:
                closing, now = now._close(decision.endpoint, block.time_seconds)
                events += closing
            rest = rest.without_first(decision.frames)
        now = now._trimmed()
        if not now.endpoint.is_open:
            return events, now
        now = replace(now, beam=now.search.advance(now.beam, now._context(0.0).speech, final=False))
        new, emitted = now.builder.partial(now.beam, now._context(block.time_seconds), now.emitted)
        return events + new, replace(now, emitted=emitted)

    def finish(self, time_seconds: float) -> list[Event]:
        """End the stream: the last events of the open utterance."""
        if not self.endpoint.is_open or not self.buffer.frames:
            return []
        now = self._trimmed()
        context = now._context(time_seconds)
        return now.builder.final(now.search.advance(now.beam, context.speech, final=True), context, now.emitted)

    def _close(self, reason: Reason, time_seconds: float) -> tuple[list[Event], DecoderStream]:
        """End the open utterance; the next one may start with the rest of the silence."""
        now = self._trimmed()
        first, context = now.buffer.first_frame, now._context(time_seconds)
        end = now.endpointer.end_frame(now.endpoint)
        beam, frames = now.search.close(now.beam, context.speech, end - first)
        events = now.builder.final(beam, context._replace(speech=context.speech.up_to(frames)), now.emitted)
        if events:
            events.append(Endpoint(now.utterance, reason, time_seconds))
        return events, replace(
            now,
            beam=now.search.start(now.builder.trace),
            buffer=now.buffer.after(first + frames),
            endpoint=now.endpointer.next_utterance(now.endpoint, first + frames),
            utterance=now.utterance + bool(events),
            emitted=NOTHING_EMITTED,
        )

    def _trimmed(self) -> DecoderStream:
        """Drop frames that no utterance needs; those of an open utterance are placed."""
        if self.buffer.is_placed:
            return self
        buffer = self.buffer.from_frame(self.endpointer.first_frame(self.endpoint))
        return replace(self, buffer=buffer.placed() if self.endpoint.is_open else buffer)

    def _context(self, time_seconds: float) -> EventContext:
        speech = self.buffer.speech(self.endpoint.spikes)
        return EventContext(self.utterance, self.buffer.first_frame, speech, time_seconds)
