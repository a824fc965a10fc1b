"""The frame-synchronous search against every CTC path, and its independence of the arrival of frames."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import ReadingEngine, TableEngine, nothing_heard, spoken
from headsync.config import DecodingConfig, EndpointConfig
from headsync.decoding.decoder_stream import DecoderStream
from headsync.decoding.encoder_stream import Block
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Hypothesis, SpeechFrames
from headsync.decoding.triggered import TriggeredBeam, TriggeredSearch
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.endpointing.endpointer import Endpointer
from headsync.engine import NO_LIMIT, IntArray, State, Window
from headsync.events import Final, Partial
from headsync.text.vocabulary import Vocabulary
from reference.ctc import read

CLASSES, FRAMES, AHEAD = 5, 24, 3
END = CLASSES - 1
Tokens = tuple[int, ...]

seeds = st.integers(0, 10_000)
cuts = st.lists(st.integers(0, FRAMES), max_size=6).map(sorted)


@pytest.fixture(autouse=True, scope="module")
def short_lead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headsync.endpointing.endpointer.LEAD_SECONDS", 0.24)
        yield


def some_ctc(seed: int, frames: int = FRAMES, classes: int = CLASSES, sharpness: float = 0.3) -> np.ndarray:
    """Never less than a hundredth, so that all tokens may enter everywhere."""
    p = np.random.default_rng(seed).dirichlet(np.full(classes, sharpness), size=frames)
    return np.log(0.01 + (1 - 0.01 * classes) * p)


def heard(log_ctc: np.ndarray, frames: int) -> SpeechFrames:
    return SpeechFrames(nothing_heard(frames), log_ctc[:frames], CtcSpikes())


def search(engine: TableEngine, beam: int = 3, ctc_weight: float = 0.5, **settings: float) -> TriggeredSearch:
    return TriggeredSearch(
        engine, DecodingConfig(beam=beam, ctc_weight=ctc_weight, **settings), engine.classes - 1, AHEAD
    )


def listen(searching: TriggeredSearch, log_ctc: np.ndarray, arrivals: list[int]) -> TriggeredBeam:
    beam = searching.start()
    for frames in arrivals:
        beam = searching.advance(beam, heard(log_ctc, frames), final=False)
    return searching.advance(beam, heard(log_ctc, len(log_ctc)), final=True)


class TableModel:
    """A language model of scores that are drawn at random for each context."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def start(self, batch: int) -> State:
        return (np.array([()] * batch + [None], object)[:-1],)

    def step(self, tokens_B: IntArray, state: State) -> tuple[np.ndarray, State]:
        contexts = [(*before, int(token)) for before, token in zip(state[0], tokens_B, strict=True)]
        rows = np.empty(len(contexts), object)
        rows[:] = contexts
        return np.array([self.after(context) for context in contexts]), (rows,)

    def after(self, context: Tokens) -> np.ndarray:
        logits = np.random.default_rng([77, *context]).normal(size=self.classes)
        logits[0] = -np.inf
        return logits - np.logaddexp.reduce(logits)


# every path, written out


class Literal:
    """The search without a beam: the texts after each frame, where their last tokens enter, and what they score."""

    def __init__(self, engine: TableEngine, log_ctc: np.ndarray, ahead: int) -> None:
        self.engine, self.log_ctc, self.ahead = engine, log_ctc, ahead
        self.frames, self.classes = log_ctc.shape

    def after(self, frames: int) -> dict[Tokens, tuple[float, float]]:
        """For each text the probability of all paths, and of those whose last token begins at the last frame."""
        whole: Counter[Tokens] = Counter()
        enters: Counter[Tokens] = Counter()
        for path in itertools.product(range(self.classes - 1), repeat=frames):  # <eos> is no label
            p = math.exp(sum(self.log_ctc[t, label] for t, label in enumerate(path)))
            whole[read(path)] += p
            if frames and path[-1] and (frames == 1 or path[-2] != path[-1]):
                enters[read(path)] += p
        return {tokens: (p, enters[tokens]) for tokens, p in whole.items()}

    def texts(self) -> dict[Tokens, tuple[Tokens, float, float]]:
        """After all frames: the halts, the decoder's score and the probability by CTC."""
        now: dict[Tokens, tuple[Tokens, float]] = {(): ((), 0.0)}
        p: dict[Tokens, tuple[float, float]] = {}
        for t in range(self.frames):
            before, p = now, self.after(t + 1)
            now = {}
            for tokens, (whole, enters) in p.items():
                if enters > whole - enters:  # rather now than before
                    halts, score = before[tokens[:-1]]
                    limit = t + 1 + self.ahead
                    now[tokens] = (*halts, t + 1), score + self.score(tokens[:-1], limit)[tokens[-1]]
                else:
                    now[tokens] = before[tokens]
        return {tokens: (*now[tokens], p[tokens][0]) for tokens in now}

    def score(self, tokens: Tokens, limit: int) -> np.ndarray:
        prefix = np.array([self.engine.classes - 1, *tokens])
        reach = min(limit, self.frames)
        return self.engine._row(prefix, limit, reach, limit > reach, self.frames)[0]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ahead", [0, 1, 10])
def test_a_beam_that_is_wide_enough_is_all_paths(seed: int, ahead: int) -> None:
    """CTC's part, triggers, the decoder's part and the joint score of every text there is."""
    engine = TableEngine(seed, 4)
    log_ctc = some_ctc(seed, 5, 4)
    searching = TriggeredSearch(engine, DecodingConfig(beam=1000, ctc_weight=0.3, length_bonus=0.2), 3, ahead)
    beam = listen(searching, log_ctc, [2, 4])
    literal = Literal(engine, log_ctc, ahead)
    expected = literal.texts()
    assert {h.tokens for h in beam.ended} == set(expected)
    for h in beam.ended:
        halts, attention, p = expected[h.tokens]
        attention += literal.score(h.tokens, NO_LIMIT)[3]
        assert h.halts == halts
        assert h.ctc == pytest.approx(math.log(p), abs=1e-9)
        assert h.attention == pytest.approx(attention, abs=1e-9)
        assert h.score == pytest.approx(0.7 * attention + 0.3 * math.log(p) + 0.2 * len(h.tokens), abs=1e-9)
        assert h.steps == len(h.tokens) + 1
    assert [h.score for h in beam.ended] == sorted((h.score for h in beam.ended), reverse=True)
    assert beam.best == beam.nbest(2)[0] == beam.ended[0]


def test_triggers_move_in_these_examples() -> None:
    """Otherwise the test above would not show that the decoder is called again."""
    entered_first = moved = 0
    for seed in range(12):
        log_ctc = some_ctc(seed, 5, 4)
        texts = Literal(TableEngine(seed, 4), log_ctc, 0).texts()
        entered_first += sum(halts == tuple(range(1, len(tokens) + 1)) for tokens, (halts, _, _) in texts.items())
        moved += sum(halts != tuple(range(1, len(tokens) + 1)) for tokens, (halts, _, _) in texts.items())
    assert entered_first > 50
    assert moved > 50


# arrival


def seen(beam: TriggeredBeam) -> tuple[object, ...]:
    return beam.frames, beam.live, beam.ended, tuple((prefix.label, prefix.blank) for prefix in beam.prefixes)


@settings(max_examples=15, deadline=None)
@given(seeds, cuts, st.integers(1, 4), st.integers(0, FRAMES))
def test_arrival_of_frames_changes_nothing(seed: int, arrivals: list[int], beam: int, now: int) -> None:
    searching, log_ctc = search(TableEngine(seed), beam, 0.3), some_ctc(seed)
    at_once = searching.advance(searching.start(), heard(log_ctc, now), final=False)
    by_pieces = searching.start()
    for frames in [*(frames for frames in arrivals if frames < now), now]:
        by_pieces = searching.advance(by_pieces, heard(log_ctc, frames), final=False)
    assert seen(by_pieces) == seen(at_once)
    whole = listen(searching, log_ctc, [])
    assert seen(searching.advance(by_pieces, heard(log_ctc, FRAMES), final=True)) == seen(whole)
    assert seen(listen(searching, log_ctc, list(range(FRAMES + 1)))) == seen(whole)


@settings(max_examples=12, deadline=None)
@given(seeds, st.integers(1, 4))
def test_every_beam_descends_from_those_before_it(seed: int, beam: int) -> None:
    searching, log_ctc = search(TableEngine(seed), beam), some_ctc(seed)
    now = searching.start()
    for frames in range(1, FRAMES + 1):
        before, now = now, searching.advance(now, heard(log_ctc, frames), final=False)
        older = {h.tokens for h in before.live}
        assert all(h.tokens in older or h.tokens[:-1] in older for h in now.live)
        assert now.frames == max(0, frames - AHEAD)
        assert len({h.tokens for h in now.live}) == len(now.live) <= 2 * beam
        assert [h.score for h in now.live] == sorted((h.score for h in now.live), reverse=True)
    ended = searching.advance(now, heard(log_ctc, FRAMES), final=True)
    assert ended.live == ()
    assert ended.frames == FRAMES
    assert not any({0, END} & set(h.tokens) for h in ended.ended)


@settings(max_examples=12, deadline=None)
@given(seeds, st.integers(1, 4))
def test_the_decoder_looks_as_far_as_the_trigger_and_the_lookahead(seed: int, beam: int) -> None:
    engine = TableEngine(seed)
    searching, log_ctc = search(engine, beam), some_ctc(seed)
    now = searching.start()
    for t in range(FRAMES - AHEAD):
        engine.asked.clear()
        parents = now.live
        now = searching.advance(now, heard(log_ctc, t + 1 + AHEAD), final=False)
        assert len(engine.asked) <= len({len(h.tokens) for h in parents})  # one call for those of one length
        assert sum(len(window.limit_B) for window in engine.asked) <= len(parents) <= 2 * beam
        for window in engine.asked:
            assert set(window.limit_B.tolist()) == set(window.frames_B.tolist()) == {t + 1 + AHEAD}
            assert not window.final_B.any()
    engine.asked.clear()
    searching.advance(now, heard(log_ctc, FRAMES), final=True)
    assert {int(window.frames_B[0]) for window in engine.asked} == {FRAMES}
    assert all(window.final_B.all() for window in engine.asked)
    assert engine.asked[-1].limit_B[0] == NO_LIMIT


def test_nothing_is_decoded_before_the_lookahead_has_arrived() -> None:
    engine = TableEngine(0)
    searching = search(engine)
    assert searching.advance(searching.start(), heard(some_ctc(0), AHEAD), final=False).frames == 0
    assert engine.asked == []
    assert searching.advance(searching.start(), heard(some_ctc(0), AHEAD + 1), final=False).frames == 1


def test_nothing_is_decoded_in_silence() -> None:
    """Tokens of less probability than a thousandth do not enter."""
    engine = TableEngine(0)
    log_ctc = np.log(np.full((FRAMES, CLASSES), 0.9e-3))
    log_ctc[:, 0] = np.log(1 - 4 * 0.9e-3)
    beam = search(engine).advance(search(engine).start(), heard(log_ctc, FRAMES), final=False)
    assert [h.tokens for h in beam.live] == [()]
    assert engine.asked == []


def test_a_token_that_has_entered_keeps_entering() -> None:
    """Where a prefix is in the beam, CTC's score of it is exact, also over frames that would not have proposed it."""
    p = np.full((5, CLASSES), 5e-4)
    p[1, 1] = 0.3
    p[:, 0] = 1 - p[:, 1:].sum(1)
    beam = listen_to(search(TableEngine(0)), np.log(np.concatenate([p, np.ones((AHEAD, CLASSES))])))
    (one,) = [h for h in beam.live if h.tokens == (1,)]
    exact = sum(prod(p, path) for path in itertools.product((0, 1), repeat=5) if read(path) == (1,) and path[0] == 0)
    assert one.ctc == pytest.approx(math.log(exact), abs=1e-9)  # at frame 0 nothing was proposed


def prod(p: np.ndarray, path: Tokens) -> float:
    return math.prod(float(p[t, label]) for t, label in enumerate(path))


def test_a_stream_can_be_pickled_and_resumed() -> None:
    searching, log_ctc = search(TableEngine(1)), some_ctc(1)
    beam = searching.advance(searching.start(), heard(log_ctc, 12), final=False)
    again = pickle.loads(pickle.dumps(beam))
    ended = [searching.advance(one, heard(log_ctc, FRAMES), final=True).ended for one in (beam, again)]
    assert ended[0] == ended[1]


# the beam


def test_the_beam_keeps_the_best_by_ctc_and_by_the_joint_score() -> None:
    class Contrary(TableEngine):
        """Always prefers token 2."""

        def decode(self, *given):  # type: ignore[no-untyped-def]
            step = super().decode(*given)
            step.log_p_BV[:] = np.log([0.01, 0.01, 0.96, 0.01, 0.01])
            return step

    p = np.full((6, CLASSES), 0.01)
    p[:, 0] = 0.96
    p[2] = [0.01, 0.9, 0.07, 0.01, 0.01]
    beam = listen_to(search(Contrary(0), beam=1, ctc_weight=0.2), np.log(p))
    assert {h.tokens for h in beam.live} == {(1,), (2,)}
    assert beam.best.tokens == (2,)
    surely = beam.best.confidences[0]
    joint = np.array([0.8 * math.log(d) + 0.2 * math.log(c) for d, c in [(0.01, 0.9), (0.96, 0.07), (0.01, 0.01)]])
    assert surely == pytest.approx(np.exp(joint[1]) / np.exp(joint).sum(), abs=1e-9)


def listen_to(searching: TriggeredSearch, log_ctc: np.ndarray) -> TriggeredBeam:
    return searching.advance(searching.start(), heard(log_ctc, len(log_ctc)), final=False)


@settings(max_examples=12, deadline=None)
@given(seeds, st.integers(1, 4), st.sampled_from([0.1, 0.5, 0.9]))
def test_skipping_hopeless_prefixes_changes_nothing(seed: int, beam: int, ctc_weight: float) -> None:
    class AskingForAll(TriggeredSearch):
        def _promising(self, prefixes):  # type: ignore[no-untyped-def]
            return prefixes

    one, other = search(TableEngine(seed), beam, ctc_weight), TableEngine(seed)
    every = AskingForAll(other, one.config, END, AHEAD)
    assert seen(listen(one, some_ctc(seed), [])) == seen(listen(every, some_ctc(seed), []))
    asked = [sum(len(window.limit_B) for window in engine.asked) for engine in (one.engine, other)]  # type: ignore[attr-defined]
    assert asked[0] <= asked[1]


def test_the_number_of_tokens_is_bounded() -> None:
    searching = search(TableEngine(0, end_bonus=-50.0), 3, length_bonus=50.0)
    searching = replace(searching, most_tokens_per_frame=0.01)
    assert len(listen(searching, some_ctc(0), []).best.tokens) == 6  # 5 and a little


def test_the_language_model_joins_in() -> None:
    searching = TriggeredSearch(
        TableEngine(2), DecodingConfig(beam=3, ctc_weight=0.4, lm_weight=0.7), END, AHEAD, TableModel(CLASSES)
    )
    log_ctc = some_ctc(2)
    beam = listen_to(searching, log_ctc)
    ended = searching.advance(beam, heard(log_ctc, FRAMES), final=True)
    for h, tokens in [(h, h.tokens) for h in beam.live] + [(h, (*h.tokens, END)) for h in ended.ended]:
        contexts = [(END, *tokens[:n]) for n in range(len(tokens))]
        lm = sum(TableModel(CLASSES).after(context)[token] for context, token in zip(contexts, tokens, strict=True))
        assert h.lm == pytest.approx(lm, abs=1e-9)
        assert h.score == pytest.approx(0.6 * h.attention + 0.4 * h.ctc + 0.7 * lm, abs=1e-9)
    assert max(len(h.tokens) for h in beam.live) > 2


def test_hotwords_join_in() -> None:
    hotwords = Hotwords.build([((1, 2), 4.0)], CLASSES)
    counted = 0
    for seed in range(6):
        searching = TriggeredSearch(
            TableEngine(seed), DecodingConfig(beam=4, ctc_weight=0.4), END, AHEAD, hotwords=hotwords
        )
        for h in listen(searching, some_ctc(seed), [9]).ended:
            times = sum(pair == (1, 2) for pair in itertools.pairwise(h.tokens))
            assert h.hotwords == pytest.approx(4.0 * times)
            assert h.score == pytest.approx(0.6 * h.attention + 0.4 * h.ctc + 4.0 * times, abs=1e-9)
            counted += times
    assert counted > 5


# in an utterance

ENDPOINT = EndpointConfig(pause_seconds=0.4, longest_seconds=2.4)
VOCABULARY = Vocabulary("words", ("one", "two", "three"))
scripts = st.lists(
    st.tuples(st.integers(1, 25), st.integers(1, 3)).map(lambda word: [0] * word[0] + [word[1]]), min_size=1, max_size=8
).map(lambda words: [label for word in words for label in word])


@settings(max_examples=25, deadline=None)
@given(scripts, st.integers(1, 30), st.integers(1, 3))
def test_no_word_is_lost_and_none_invented(script: list[int], size: int, beam: int) -> None:
    """The last token is in the last frame, so that its look-ahead never comes."""
    config = DecodingConfig(beam=beam)
    searching = TriggeredSearch(ReadingEngine(VOCABULARY.size), config, VOCABULARY.end, AHEAD)
    now, events = DecoderStream.start(searching, Endpointer(ENDPOINT), VOCABULARY), []  # type: ignore[arg-type]
    for begin in range(0, len(script), size):
        labels = np.array(script[begin : begin + size], np.int64)
        new, now = now.push(Block(*spoken(labels, VOCABULARY.end), 0.04 * (begin + len(labels))))
        events += new
    events += now.finish(0.04 * len(script))
    finals = [event for event in events if isinstance(event, Final)]
    said = [VOCABULARY.tokens[label - 1] for label in script if label]
    assert " ".join(final.text for final in finals).split() == said
    assert [halt for final in finals for halt in final.halts] == [n + 1 for n, label in enumerate(script) if label]
    for event in events:
        if isinstance(event, Partial):
            (final,) = [final for final in finals if final.utterance == event.utterance]
            assert final.text.startswith(event.committed)


def test_a_hypothesis_records_frames_steps_and_confidences() -> None:
    """Frames consumed, steps and confidences belong to the current tokens, even if triggers have moved."""
    engine = TableEngine(4)
    for h in listen_to(search(engine, 4), some_ctc(4)).live:
        assert isinstance(h, Hypothesis)
        state, consumed = engine.start_decoder(1), 0
        for before, halt in zip((END, *h.tokens), h.halts, strict=False):
            limit = halt + AHEAD
            window = Window(np.array([limit]), np.array([limit]), np.array([False]))
            step = engine.decode(np.array([before]), nothing_heard(FRAMES), state, window)
            state, consumed = step.state, consumed + int(step.end_BNH.sum())
        assert (h.consumed, h.steps, len(h.confidences)) == (consumed, len(h.tokens), len(h.tokens))
        assert list(h.halts) == sorted(h.halts)
