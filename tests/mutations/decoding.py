"""Faults in the search and the streams."""

from __future__ import annotations

from mutations.mutation import Mutation

STREAM = ("tests/decoding/test_decoder_stream.py",)
PUBLISHED = ("tests/decoding/test_published_policy.py",)
PHRASES = "tests/decoding/test_phrases.py"
BUFFER = ("tests/decoding/test_speech_buffer.py",)

MUTATIONS: list[Mutation] = [
    Mutation(
        "a text may end inside a phrase",
        "decoding/phrases.py",
        "return 0.0 if complete or 0 in nothing else UNFINISHED",
        "return 0.0",
        (f"{PHRASES}::test_the_texts_that_it_accepts_are_those_of_a_literal_reading",),
    ),
    Mutation(
        "other speech beside the phrases has no cost",
        "decoding/phrases.py",
        "found += [(OTHER, cost + 1, old) for node, cost, old in sources if node <= OTHER]",
        "found += [(OTHER, cost, old) for node, cost, old in sources if node <= OTHER]",
        (f"{PHRASES}::test_other_speech_costs_its_tokens",),
    ),
    Mutation(
        "boundaries between the words of a phrase can be repeated",
        "decoding/phrases.py",
        "BREAK: dict.fromkeys((LETTER, POINTED, SOUNDED, FIRST), BROKEN),",
        "BREAK: dict.fromkeys((LETTER, POINTED, BROKEN, SOUNDED, FIRST), BROKEN),",
        (f"{PHRASES}::test_the_texts_that_it_accepts_are_those_of_a_literal_reading",),
    ),
    Mutation(
        "the block clock ignores what the front end needs after a frame",
        "decoding/encoder_stream.py",
        "return self.features.rate.needed_samples(embedded) + self.features.delay_samples",
        "return self.features.rate.needed_samples(embedded)",
        ("tests/decoding/test_encoder_stream.py::test_a_block_waits_for_what_the_front_end_needs_after_its_frames",),
    ),
    Mutation(
        "the block clock of a session ignores the delay of pitch",
        "recognizer.py",
        "statistics, features = recognizer.folder.statistics, recognizer.features",
        "statistics, features = recognizer.folder.statistics, type(recognizer.features)()",
        ("tests/test_recognizer.py::test_an_event_comes_with_the_sample_that_its_time_names",),
    ),
    Mutation(
        "a block is due one sample late",
        "decoding/encoder_stream.py",
        "return self._missing is not None and samples >= self._needed_samples(self.embedded + self._missing)",
        "return self._missing is not None and samples > self._needed_samples(self.embedded + self._missing)",
        ("tests/decoding/test_encoder_stream.py::test_a_block_waits_for_what_the_front_end_needs_after_its_frames",),
    ),
    Mutation(
        "the last blocks do not need the end of the stream",
        "decoding/encoder_stream.py",
        "return now._encode(math.inf) if final and len(now.ahead_TE) else (None, now)",
        "time_seconds = now._needed_samples(now.embedded) / SAMPLE_RATE\n"
        "return now._encode(time_seconds) if final and len(now.ahead_TE) else (None, now)",
        ("tests/decoding/test_encoder_stream.py::test_blocks_without_their_right_context_need_the_end",),
    ),
    Mutation(
        "the next utterance begins one frame early",
        "decoding/speech_buffer.py",
        "return replace(empty, memory=_cut(self.tail, there - left, there), log_ctc_TV=self.log_ctc_TV[-left:].copy())",
        "return replace(empty, memory=_cut(self.tail, ~left + there, there - 1), log_ctc_TV=self.log_ctc_TV[-left:])",
        BUFFER,
    ),
    Mutation(
        "CTC of the next utterance is one frame early",
        "decoding/speech_buffer.py",
        "return replace(empty, memory=_cut(self.tail, there - left, there), log_ctc_TV=self.log_ctc_TV[-left:].copy())",
        "return replace(empty, memory=_cut(self.tail, there - left, there), log_ctc_TV=self.log_ctc_TV[~left:-1])",
        BUFFER,
    ),
    Mutation(
        "the tail of an utterance is kept placed",
        "decoding/speech_buffer.py",
        "tail = self._tail(_joined(tail, new))",
        "tail = self._tail(_joined(tail, self.engine.place(new, self.frames)))",
        BUFFER,
    ),
    Mutation(
        "CTC scores the frames of the nearest hypothesis",
        "decoding/beam.py",
        "beam = self._carry(beam, speech, speech.frames if final else int(step.answers.used_B.max()))",
        "beam = self._carry(beam, speech, speech.frames if final else int(step.answers.used_B.min()))",
        ("tests/decoding/test_pending_step.py::test_ctc_scores_the_frames_of_the_furthest_hypothesis",),
    ),
    Mutation(
        "a hotword forgets what the text earned as the beginning of another",
        "decoding/hotwords.py",
        "self.earned[node] = max(self.earned[node], self.kept[node], self.earned[other])",
        "self.earned[node] = max(self.earned[node], self.kept[node])",
        ("tests/decoding/test_hotwords.py::test_a_text_earns_the_most_of_all_phrases_that_it_may_be_in",),
    ),
    Mutation(
        "a step has one frame more than M",
        "decoding/lookahead.py",
        "return base + ahead",
        "return base + ahead + 1",
        ("tests/decoding/test_lookahead.py",),
    ),
    Mutation(
        "punctuation needs a spike",
        "decoding/lookahead.py",
        "written = sum(token not in punctuation for token in h.tokens)",
        "written = len(h.tokens)",
        ("tests/decoding/test_lookahead.py",),
    ),
    Mutation(
        "the left context stays at an endpoint",
        "recognizer.py",
        "self._encoder = self._encoder.without_left_context()",
        "pass",
        ("tests/test_shipped.py::test_an_utterance_after_a_pause_is_recognised_as_alone",),
    ),
    Mutation(
        "the gated limit counts from the last halt",
        "decoding/lookahead.py",
        "found = limit(spike, ahead)",
        "found = limit(max(h.t, spike), ahead)",
        ("tests/decoding/test_lookahead.py",),
    ),
    Mutation(
        "the published limit does not count from the last halt",
        "decoding/published_policy.py",
        "limit = self.limit(h.t, self.config.lookahead_frames)",
        "limit = self.limit(h.exhausted, self.config.lookahead_frames)",
        PUBLISHED,
    ),
    Mutation(
        "CTC scores one frame beyond the published limit",
        "decoding/published_policy.py",
        "return furthest",
        "return furthest + 1",
        PUBLISHED,
    ),
    Mutation(
        "CTC scores whatever has arrived",
        "decoding/published_policy.py",
        "beam = self._carry(beam, speech, min(self._ctc_frames(beam, step), speech.frames))",
        "beam = self._carry(beam, speech, speech.frames)",
        PUBLISHED,
    ),
    Mutation(
        "texts that ended early are not scored on all frames",
        "decoding/published_policy.py",
        "ended = tuple(self._on_all_frames(h, speech.log_ctc_TV) for h in beam.ended)",
        "ended = beam.ended",
        ("tests/decoding/test_published_policy.py::test_texts_that_ended_early_are_scored_on_all_frames",),
    ),
    Mutation(
        "a whole recording loses the silence before its first spike",
        "endpointing/endpointer.py",
        "return 0",
        "return super().first_frame(state)",
        STREAM,
    ),
    Mutation(
        "postponed hypotheses are not exhausted",
        "decoding/beam.py",
        "replace(h, exhausted=int(exhausted)) if prefers else h",
        "h",
        ("tests/decoding/test_beam.py::test_a_hypothesis_that_prefers_to_end_waits_for_more_evidence",),
    ),
    Mutation(
        "spikes of written tokens give steps",
        "decoding/lookahead.py",
        "first = max(h.exhausted, h.t - LAG_FRAMES)",
        "first = h.exhausted",
        ("tests/decoding/test_lookahead.py::test_a_spike_long_before_the_last_halt_belongs_to_a_written_token",),
    ),
    Mutation(
        "after the utterance a text ends only if this is one of the best candidates",
        "decoding/beam.py",
        'if self.config.policy == "gated" and self.config.ctc_weight:',
        "if self.config.ctc_weight > 1:",
        ("tests/decoding/test_beam.py::test_ctc_ends_a_text_whose_decoder_repeats_a_word",),
    ),
    Mutation(
        "after the utterance a text may end before a spike",
        "decoding/beam.py",
        "ends_B |= [not self._has_spike(h, speech) for h in beam.live]",
        "ends_B |= True",
        ("tests/decoding/test_beam.py::test_a_text_does_not_end_before_a_spike_that_is_left",),
    ),
    Mutation(
        "words are committed that hypotheses do not share",
        "decoding/event_builder.py",
        "tokens = common_prefix([h.tokens for h in (*beam.live, *beam.ended)])",
        "tokens = beam.best.tokens",
        STREAM,
    ),
    Mutation(
        "an event is sent twice",
        "decoding/event_builder.py",
        "if (text, committed) != (emitted.text, emitted.committed_words):",
        "if text:",
        STREAM,
    ),
    Mutation(
        "a session lets several threads in",
        "recognizer.py",
        "if not self._lock.acquire(blocking=False):",
        "if not self._lock.acquire(blocking=False) and self._finished:",
        ("tests/test_recognizer.py::test_a_session_in_use_by_another_thread_is_refused",),
    ),
]
