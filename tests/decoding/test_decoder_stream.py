"""Blocks to events: utterances open and close, silence is dropped, and no word is lost between utterances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import ReadingEngine, spoken
from headsync.config import DecodingConfig, EndpointConfig
from headsync.decoding.beam import Search
from headsync.decoding.decoder_stream import DecoderStream
from headsync.decoding.encoder_stream import Block
from headsync.decoding.event_builder import NOTHING_EMITTED
from headsync.decoding.lookahead import lookahead
from headsync.endpointing.endpointer import STREAM_START, Endpointer, WholeRecording
from headsync.engine import Decoded, IntArray, Memory, State, Window
from headsync.events import Endpoint, Event, Final, Partial, Text
from headsync.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary("words", ("one", "two", "three"))
CONFIG = DecodingConfig(lookahead_frames=4)
ENDPOINT = EndpointConfig(pause_seconds=0.4, longest_seconds=2.4)
LONG_PAUSE = replace(ENDPOINT, pause_seconds=1.2, longest_seconds=1.6)
SILENCE, BLOCK = [0], 8

# words with silence before each; 10 frames of silence part two utterances
scripts = st.lists(
    st.tuples(st.integers(1, 25), st.integers(1, 3)).map(lambda word: [0] * word[0] + [word[1]]), max_size=8
).map(lambda words: [label for word in words for label in word])


@pytest.fixture(autouse=True, scope="module")
def short_lead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headsync.endpointing.endpointer.LEAD_SECONDS", 0.24)
        yield


def start(endpoint: EndpointConfig = ENDPOINT, vocabulary: Vocabulary = VOCABULARY) -> DecoderStream:
    search = Search(ReadingEngine(vocabulary.size), lookahead, CONFIG, vocabulary.end)
    return DecoderStream.start(search, Endpointer(endpoint), vocabulary)


def guessing(seed: int, **settings: float) -> DecoderStream:
    search = Search(Guessing(VOCABULARY.size, seed), lookahead, replace(CONFIG, **settings), VOCABULARY.end)
    return DecoderStream.start(search, Endpointer(ENDPOINT), VOCABULARY)


def hear(now: DecoderStream, script: list[int], size: int = BLOCK, first: int = 0) -> tuple[list[Event], DecoderStream]:
    """Push a script in blocks of `size` frames; a block's time is the frame at which it ends, in frames of 40 ms."""
    events: list[Event] = []
    for begin in range(0, len(script), size):
        labels = np.array(script[begin : begin + size], np.int64)
        new, now = now.push(Block(*spoken(labels, VOCABULARY.end), 0.04 * (first + begin + len(labels))))
        events += new
    return events, now


def listen_all(script: list[int], size: int = BLOCK, endpoint: EndpointConfig = ENDPOINT) -> list[Event]:
    events, now = hear(start(endpoint), script, size)
    return events + now.finish(0.04 * len(script))


def listen(script: list[int], size: int = BLOCK, endpoint: EndpointConfig = ENDPOINT) -> list[Text]:
    return [event for event in listen_all(script, size, endpoint) if not isinstance(event, Endpoint)]


def finals(events: list[Event]) -> list[Final]:
    return [event for event in events if isinstance(event, Final)]


def said(script: list[int]) -> str:
    return " ".join(
        VOCABULARY.tokens[label - 1] for n, label in enumerate(script) if label and script[n - 1 : n] != [label]
    )


def test_a_word_is_partial_and_then_final() -> None:
    events = listen(SILENCE * 5 + [2] + SILENCE * 30)
    assert [(type(event), event.text, event.utterance) for event in events] == [(Partial, "two", 0), (Final, "two", 0)]
    partial, final = events
    assert partial.time_seconds == pytest.approx(0.04 * 8)
    assert final.time_seconds == pytest.approx(0.04 * 16)  # the block in which ten frames of silence are full
    assert isinstance(final, Final)
    assert final.halts == (6,)  # frames 0 to 5 were consumed
    assert [(w.text, w.start_seconds) for w in final.words] == [(w.text, w.start_seconds) for w in partial.words]
    assert partial.words[0].end_seconds == pytest.approx(partial.time_seconds)  # no word ends in the future
    assert final.delay_seconds == pytest.approx(final.time_seconds - final.words[-1].end_seconds)


def test_no_event_is_repeated() -> None:
    events = listen(SILENCE * 5 + [2] + SILENCE * 8 + [3] + SILENCE * 9 + [1])
    assert [event.text for event in events] == ["two", "two three", "two three one", "two three one"]
    assert isinstance(events[-1], Final)


@settings(max_examples=60, deadline=None)
@given(scripts)
def test_no_word_is_lost_and_none_invented(script: list[int]) -> None:
    events = listen(script)
    assert " ".join(final.text for final in finals(events)) == said(script)
    assert [final.utterance for final in finals(events)] == list(range(len(finals(events))))
    halts = [halt for final in finals(events) for halt in final.halts]
    assert halts == [n + 1 for n, label in enumerate(script) if label]  # counted in the stream


@settings(max_examples=60, deadline=None)
@given(scripts, st.integers(1, 30))
def test_finals_do_not_depend_on_the_size_of_blocks(script: list[int], size: int) -> None:
    """Boundaries, texts and cost of utterances depend on frames alone."""
    one, other = finals(listen(script)), finals(listen(script, size))
    assert [(f.text, f.words, f.halts, f.cost_ratio) for f in one] == [
        (f.text, f.words, f.halts, f.cost_ratio) for f in other
    ]


def hear_late(script: list[int], late: int, size: int) -> list[Final]:
    """CTC spikes some frames after the decoder can recognise a word."""
    log_ctc_TV, _ = spoken(np.array([0] * late + script), VOCABULARY.end)
    _, memory = spoken(np.array(script + [0] * late), VOCABULARY.end)
    events, now = [], start()
    for begin in range(0, len(log_ctc_TV), size):
        part = Memory(*(x[:, :, :, begin : begin + size] for x in memory))
        new, now = now.push(Block(log_ctc_TV[begin : begin + size], part, 0.04 * (begin + size)))
        events += new
    return finals(events + now.finish(0.04 * len(log_ctc_TV)))


@settings(max_examples=60, deadline=None)
@given(st.integers(6, 40), st.integers(0, 4), st.integers(1, 30))
def test_a_word_begun_at_an_endpoint_belongs_to_the_next_utterance(pause: int, late: int, size: int) -> None:
    """Ten frames of silence end an utterance: five belong to it, and five to the next one."""
    script = SILENCE * 5 + [1] + SILENCE * pause + [2] + SILENCE * 5
    told = hear_late(script, late, size)
    assert [final.text for final in told] == (
        ["one", "two"] if pause >= Endpointer(ENDPOINT).pause_frames else ["one two"]
    )
    assert [halt for final in told for halt in final.halts] == [6, 7 + pause]  # where the words are, to the frame


@settings(max_examples=40, deadline=None)
@given(scripts)
def test_each_utterance_has_partials_and_then_one_final(script: list[int]) -> None:
    now = 0
    for event in listen(script):
        assert event.utterance == now
        assert event.text
        now += isinstance(event, Final)
    times = [event.time_seconds for event in listen(script)]
    assert times == sorted(times)


def test_silence_before_an_utterance_does_not_count_as_its_length() -> None:
    """An encoder of full context gives one block: then minutes of silence come together with the words."""
    script = SILENCE * 200 + [1] + SILENCE * 6 + [2] + SILENCE * 6 + [3]
    for size in (1, BLOCK, len(script)):
        assert [final.text for final in finals(listen(script, size))] == ["one two three"]


def test_long_silence_is_not_stored() -> None:
    now = start()
    for n in range(500):
        events, now = hear(now, SILENCE * BLOCK)
        assert finals(events) == []
        buffer = now.buffer
        assert buffer.memory is not None
        assert buffer.log_ctc_TV is not None
        assert buffer.frames <= Endpointer(ENDPOINT).lead_frames
        assert buffer.memory.keys_BNHTD.base is buffer.log_ctc_TV.base is None  # copies: nothing before them is held
        assert len(buffer.log_ctc_TV) == buffer.memory.keys_BNHTD.shape[3] == buffer.frames
        assert buffer.first_frame + buffer.frames == (n + 1) * BLOCK
    events, now = hear(now, [0, 0, 1, 0], first=500 * BLOCK)
    (final,) = finals(now.finish(1.0))
    assert final.halts == (500 * BLOCK + 3,)
    word = final.words[0]
    assert word.start_seconds < (500 * BLOCK + 2) * 0.04 < word.end_seconds


def murmur(script: list[tuple[int, float]], size: int) -> list[Final]:
    """Words and their CTC probabilities; only a spike of at least 0.8 opens an utterance."""
    events, now = [], start(replace(ENDPOINT, onset_probability=0.8))
    for begin in range(0, len(script), size):
        part = script[begin : begin + size]
        log_ctc_TV, memory = spoken(np.array([label for label, _ in part]), VOCABULARY.end)
        for frame, (label, sure) in enumerate(part):
            log_ctc_TV[frame, [0, label]] = np.log([1 - sure, sure]) if label else [-0.01, -0.01]
        new, now = now.push(Block(log_ctc_TV, memory, 0.04 * (begin + len(part))))
        events += new
    return finals(events + now.finish(0.04 * len(script)))


def test_faint_words_open_no_utterance_but_count_before_a_clear_one() -> None:
    quiet, faint, clear = [(0, 1.0)] * 5, [(1, 0.6)], [(2, 0.9)]
    for size in (1, 3, 8, 12):
        assert murmur((quiet + faint) * 40 + quiet, size) == []
        (final,) = murmur(quiet * 9 + (faint + quiet) * 3 + clear + quiet + faint + quiet * 4, size)
        assert final.text == "one one one two one"
        assert final.halts == (46, 52, 58, 64, 70)
        (final,) = murmur(quiet + faint + quiet * 2 + clear + quiet * 4, size)  # ten frames are a pause
        assert final.text == "two"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.6, 0.9])), max_size=60), st.integers(1, 30))
def test_faint_words_do_not_depend_on_the_size_of_blocks(script: list[tuple[int, float]], size: int) -> None:
    one, other = murmur(script, BLOCK), murmur(script, size)
    assert [(f.text, f.words, f.halts, f.cost_ratio) for f in one] == [
        (f.text, f.words, f.halts, f.cost_ratio) for f in other
    ]


def test_memory_is_bounded_over_many_utterances() -> None:
    now, heard = start(), []
    for _ in range(40):
        events, now = hear(now, [1] + SILENCE * 23)
        heard += finals(events)
        assert now.buffer.frames <= 2 * BLOCK + Endpointer(ENDPOINT).lead_frames
    assert [final.text for final in heard] == ["one"] * 40
    assert [final.halts for final in heard] == [(24 * n + 1,) for n in range(40)]


def test_frames_of_the_next_utterance_are_kept() -> None:
    """The silence that ends one utterance and the first word of the next lie in one block."""
    script = [1] + SILENCE * 10 + [2] + SILENCE * 3
    events = listen(script, size=len(script))
    assert [(event.text, event.halts) for event in finals(events)] == [("one", (1,)), ("two", (12,))]


def test_many_utterances_in_one_block() -> None:
    script = ([1] + SILENCE * 12 + [2] + SILENCE * 11) * 3
    events = listen(script, size=len(script))
    assert [final.text for final in finals(events)] == ["one", "two"] * 3


def test_an_utterance_opens_a_lead_before_its_first_evidence() -> None:
    """Silence within one big block is left out as well: r counts the frames from the lead on."""
    _, now = hear(start(), SILENCE * 50 + [1], size=51)
    assert (now.buffer.first_frame, now.buffer.frames, now.endpoint.spikes.frames) == (44, 7, (50,))
    (final,) = finals(now.finish(2.04))
    assert final.halts == (51,)
    assert final.cost_ratio == pytest.approx((7 + 7) / (2 * 7))  # the word, and the step that ends


@pytest.mark.parametrize("size", [1, BLOCK, 100])
def test_a_whole_recording_keeps_its_silence(size: int) -> None:
    search = Search(ReadingEngine(VOCABULARY.size), lookahead, CONFIG, VOCABULARY.end)
    now = DecoderStream.start(search, WholeRecording(ENDPOINT), VOCABULARY)
    script = SILENCE * 50 + [1] + SILENCE * 30 + [2] + SILENCE * 9
    events, now = hear(now, script, size)
    assert all(isinstance(event, Partial) for event in events)
    assert (now.buffer.first_frame, now.buffer.frames) == (0, len(script))
    (final,) = now.finish(0.04 * len(script))
    assert isinstance(final, Final)
    assert (final.text, final.halts) == ("one two", (51, 82))
    assert final.cost_ratio == pytest.approx((51 + 82 + 91) / (3 * 91))


@pytest.mark.parametrize("size", [1, BLOCK, 100])
def test_ctc_and_decoder_see_the_same_frames(size: int) -> None:
    """With a high CTC weight, a word would be lost if silence were dropped in one of them only."""
    search = Search(ReadingEngine(VOCABULARY.size), lookahead, replace(CONFIG, ctc_weight=0.9), VOCABULARY.end)
    script = SILENCE * 43 + [2] + SILENCE * 5 + [1] + SILENCE * 30 + [3] + SILENCE * 3
    events, now = hear(DecoderStream.start(search, Endpointer(ENDPOINT), VOCABULARY), script, size)
    events += now.finish(0.04 * len(script))
    assert [(final.text, final.halts) for final in finals(events)] == [("two one", (44, 50)), ("three", (81,))]


def test_a_long_utterance_ends_at_a_short_pause() -> None:
    script = ([1] + SILENCE * 7) * 12
    texts = [final.text for final in finals(listen(script, endpoint=LONG_PAUSE))]
    assert len(texts) > 1
    assert " ".join(texts) == said(script)


def test_without_speech_there_is_no_event() -> None:
    assert listen_all([]) == []
    assert listen_all(SILENCE * 100) == []
    assert start().finish(0.0) == []


def test_an_utterance_of_spaces_has_no_event() -> None:
    spelling = Vocabulary("characters", ("<space>", "a", "b"))
    events, now = hear(start(vocabulary=spelling), SILENCE * 4 + [1] + SILENCE * 20 + [2] + SILENCE * 3)
    told = [event for event in events + now.finish(1.0) if not isinstance(event, Endpoint)]
    assert [(event.utterance, event.text) for event in told] == [(0, "a"), (0, "a")]


def test_pushing_does_not_change_the_value() -> None:
    before = start()
    first, second = hear(before, [0, 1, 0, 0]), hear(before, [0, 1, 0, 0])
    assert first[0] == second[0]
    assert (before.buffer.memory, before.endpoint, before.emitted) == (None, STREAM_START, NOTHING_EMITTED)


def test_an_endpoint_has_the_reason() -> None:
    events = listen_all(SILENCE * 5 + [2] + SILENCE * 30)
    assert events[-1] == Endpoint(0, "pause", events[-2].time_seconds)
    reasons = [e.reason for e in listen_all(([1] + SILENCE * 7) * 12, endpoint=LONG_PAUSE) if isinstance(e, Endpoint)]
    assert reasons == ["length", "length"]
    assert not any(isinstance(event, Endpoint) for event in listen_all(SILENCE * 5 + [2]))  # the stream ended it


@pytest.mark.parametrize("size", [1, 7, BLOCK, 1000])
def test_long_silence_is_reported_once(size: int) -> None:
    endpoint = EndpointConfig(pause_seconds=0.4, silence_seconds=4.0)  # 100 frames
    script = SILENCE * 350 + [1] + SILENCE * 60 + [2] + SILENCE * 250
    told = [
        (event.utterance, event.reason) for event in listen_all(script, size, endpoint) if isinstance(event, Endpoint)
    ]
    assert told == [(0, "silence"), (0, "pause"), (1, "pause"), (2, "silence")]
    first = next(event for event in listen_all(script, 1, endpoint))
    assert first.time_seconds == pytest.approx(4.0)


class Guessing(ReadingEngine):
    """Unsure of every token, so that hypotheses of a beam differ for a while."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__(classes)
        self.seed = seed

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        step = super().decode(tokens_B, memory, state, window)
        source = np.random.default_rng([self.seed, int(state[0][0])])
        return step._replace(log_p_BV=step.log_p_BV + 6 * source.normal(size=step.log_p_BV.shape).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(scripts, st.integers(2, 4), st.integers(0, 1000))
def test_committed_words_stay_and_grow(script: list[int], beam: int, seed: int) -> None:
    events, now = hear(guessing(seed, beam=beam, ctc_weight=0.3), script)
    kept: dict[int, list[str]] = {}
    for event in events + now.finish(0.04 * len(script)):
        if isinstance(event, Endpoint):
            continue
        before = kept.get(event.utterance, [])
        words = [word.text for word in event.words]
        assert words[: len(before)] == before
        if isinstance(event, Partial):
            assert event.committed_words >= len(before)
            assert f"{event.committed} {event.tentative}".split() == words
            kept[event.utterance] = words[: event.committed_words]


def test_with_one_hypothesis_everything_is_committed_at_once() -> None:
    partials = [event for event in listen(SILENCE * 5 + [2] + SILENCE * 4 + [3]) if isinstance(event, Partial)]
    assert [(partial.committed, partial.tentative) for partial in partials] == [("two", ""), ("two three", "")]


def test_of_spelled_words_the_last_may_still_grow() -> None:
    spelling = Vocabulary("characters", ("<space>", "a", "b"))
    events, _ = hear(start(vocabulary=spelling), [0, 2, 3, 1, 3, 0, 0, 0], size=1)
    told = [(event.committed, event.tentative) for event in events if isinstance(event, Partial)]
    assert told[-1] == ("ab", "b")
    assert ("", "ab") in told


def test_alternatives_are_sorted_best_first() -> None:
    _, now = hear(guessing(5, beam=3, nbest=3, ctc_weight=0.3), SILENCE * 5 + [2] + SILENCE * 4 + [3, 0, 0])
    (final,) = finals(now.finish(1.0))
    assert 1 <= len(final.alternatives) <= 2
    behind = [other.behind for other in final.alternatives]
    assert behind == sorted(behind)
    assert behind[0] >= 0
    assert len({final.text, *(other.text for other in final.alternatives)}) == 1 + len(final.alternatives)
