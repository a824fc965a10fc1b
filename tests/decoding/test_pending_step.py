"""Pending steps: the result does not depend on how frames arrive."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import Bigrams, ReadingEngine, TableEngine, nothing_heard, spikes_of, spoken
from headsync.config import DecodingConfig
from headsync.decoding.beam import Search
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Beam, SpeechFrames
from headsync.decoding.lookahead import LIMITS, Limit, lookahead, unlimited, whole_utterance
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import NO_LIMIT, Decoded, IntArray, Memory, State, Window
from headsync.engine.state_tree import join_rows

CLASSES, FRAMES = 5, 40
END = CLASSES - 1

seeds = st.integers(0, 10_000)
speech = st.lists(st.integers(0, FRAMES - 1), max_size=8, unique=True).map(lambda places: tuple(sorted(places)))
cuts = st.lists(st.integers(0, FRAMES), max_size=6).map(sorted)


def some_ctc(seed: int) -> np.ndarray:
    return np.log(np.random.default_rng(seed).dirichlet([4.0, 1, 1, 1, 1], size=FRAMES))


def heard(spikes: tuple[int, ...], log_ctc: np.ndarray, frames: int) -> SpeechFrames:
    spikes = tuple(spike for spike in spikes if spike < frames)
    return SpeechFrames(nothing_heard(frames), log_ctc[:frames], CtcSpikes(spikes, (1,) * len(spikes)))


def listen(searching: Search, spikes: tuple[int, ...], log_ctc: np.ndarray, arrivals: list[int]) -> Beam:
    beam = searching.start()
    for frames in arrivals:
        beam = searching.advance(beam, heard(spikes, log_ctc, frames), final=False)
        beam = pickle.loads(pickle.dumps(beam))  # a stream can be paused and moved
    return searching.advance(beam, heard(spikes, log_ctc, FRAMES), final=True)


@settings(max_examples=30, deadline=None)
@given(seeds, speech, cuts, st.integers(1, 4), st.sampled_from([lookahead, unlimited, whole_utterance]))
def test_arrival_of_frames_changes_nothing_with_all_scorers(
    seed: int, spikes: tuple[int, ...], arrivals: list[int], beam: int, limit: Limit
) -> None:
    config = DecodingConfig(
        beam=beam, ctc_weight=0.4, lm_weight=0.3, length_bonus=0.2, lookahead_frames=5, nbest=2,
    )  # fmt: skip
    hotwords = Hotwords.build([((1, 2), 2.0), ((2, 2, 3), 1.0)], CLASSES)
    engine, log_ctc = TableEngine(seed, CLASSES, 1.0), some_ctc(seed)
    searching = Search(engine, limit, config, END, Bigrams(seed, CLASSES), hotwords, most_tokens_per_frame=0.2)
    at_once = listen(searching, spikes, log_ctc, [])
    for pieces in (arrivals, list(range(0, FRAMES + 1, 2))):
        by_pieces = listen(searching, spikes, log_ctc, pieces)
        assert by_pieces.live == at_once.live
        assert by_pieces.ended == at_once.ended


class Slow(TableEngine):
    """Each hypothesis is decided after a number of frames given by its last token."""

    def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
        log_p, ends, _ = super()._row(prefix, limit, frames, final, held)
        return log_p, ends, frames >= 10 * prefix[-1] or final


def test_only_undecided_hypotheses_are_decoded_again() -> None:
    config = DecodingConfig(beam=3, ctc_weight=0.0, lm_weight=0.5, lookahead_frames=5)
    engine, language = Slow(0, CLASSES, end_bonus=-50.0), Bigrams(0, CLASSES)
    searching = Search(engine, lookahead, config, END, language, most_tokens_per_frame=0.01, patience_frames=math.inf)
    log_ctc = some_ctc(0)
    beam = searching.start()
    asked = []
    for frames in (1, 12, 19, 21, 29):
        beam = searching.advance(beam, heard((0, 0), log_ctc, frames), final=False)
        asked.append([len(window.limit_B) for window in engine.asked])
        engine.asked.clear()
    assert asked == [[1], [1], [1], [1], [1]]  # <sos> counts as token 4, which is decided at frame 40
    beam = searching.advance(beam, heard((0, 0), log_ctc, 40), final=True)
    assert beam.best.steps

    class Early(Slow):
        def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
            log_p, ends, ready = super()._row(prefix, limit, frames, final, held)
            return log_p, ends, ready or prefix[-1] == END

    engine = Early(0, CLASSES, end_bonus=-50.0)
    searching = replace(searching, engine=engine)
    beam, asked, language.asked = searching.start(), [], 0
    for frames in (6, 9, 12, 19, 21, 29):
        beam = searching.advance(beam, heard((0, 1), log_ctc, frames), final=False)
        asked.append([len(window.limit_B) for window in engine.asked])
        engine.asked.clear()
    assert len(beam.live) == 3
    assert asked == [[1, 3], [3], [3], [2], [2], [1]]  # decided from frame 10, 20 and 30 on
    assert {h.tokens for h in beam.live} == {(1,), (2,), (3,)}
    assert language.asked == 1 + 3
    beam = searching.advance(beam, heard((0, 1), log_ctc, 30), final=False)
    assert all(len(h.tokens) == 2 for h in beam.live)
    at_once = searching.advance(searching.start(), heard((0, 1), log_ctc, 30), final=False)
    assert at_once.live == beam.live
    np.testing.assert_array_equal(at_once.state[0], beam.state[0])


def test_rows_are_joined_in_trees() -> None:
    one, other = (np.arange(2), (np.zeros((2, 3)),)), (np.array([7]), (np.ones((1, 3)),))
    joined = join_rows(one, other)
    assert joined[0].tolist() == [0, 1, 7]
    assert joined[1][0].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3]


class Doubtful(ReadingEngine):
    """Always prefers <eos> at the first word."""

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        decoded = super().decode(tokens_B, memory, state, window)
        decoded.log_p_BV[state[0] == 0, -1] = -0.05
        return decoded


def read(
    engine: ReadingEngine, script: list[int], limit: Limit, sizes: int, ctc: list[int] | None = None
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A script in blocks: what is written in the end, and along the way. CTC may read something else."""
    log_ctc, memory = spoken(np.array(script), END)
    log_ctc = log_ctc if ctc is None else spoken(np.array(ctc), END)[0]
    memory = engine.place(memory, 0)
    searching = Search(engine, limit, DecodingConfig(ctc_weight=0.0, lookahead_frames=4), END)
    frames = SpeechFrames(memory, log_ctc, spikes_of(log_ctc))
    beam, partials = searching.start(), []
    for first in range(0, len(script), sizes):
        beam = searching.advance(beam, frames.up_to(min(first + sizes, len(script))), final=False)
        partials.append(beam.best.tokens)
    beam = searching.advance(beam, frames, final=True)
    return beam.best.tokens, partials


ONLINE = [lookahead, unlimited]
SCRIPT = [0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("limit", ONLINE)
@pytest.mark.parametrize("sizes", [1, 4, 16, 100])
def test_no_word_is_lost_or_repeated(limit: Limit, sizes: int) -> None:
    for script in (SCRIPT, SCRIPT[:-3], [3], [0, 1, 2, 3, 1]):
        text, partials = read(ReadingEngine(CLASSES), script, limit, sizes)
        assert text == tuple(label for label in script if label)
        assert all(text[: len(partial)] == partial for partial in partials)


@pytest.mark.parametrize("limit", [lookahead, unlimited])
@pytest.mark.parametrize("sizes", [1, 4, 100])
def test_a_preference_for_eos_that_persists_loses_no_words(limit: Limit, sizes: int) -> None:
    """The first step halts before its limit: it would prefer <eos> forever, and all later words would be lost."""
    text, partials = read(Doubtful(CLASSES), SCRIPT, limit, sizes)
    assert text == (2, 1, 3, 2)
    if sizes == 1:
        assert partials[7] == ()  # the evidence of one word may be wrong
        assert partials[8] == (2, 1)  # that of two is not


@pytest.mark.parametrize("limit", [lookahead, unlimited])
@pytest.mark.parametrize("sizes", [1, 4, 100])
def test_spikes_that_the_decoder_rejects_add_no_word(limit: Limit, sizes: int) -> None:
    """CTC has spiked twice in the first word; the decoder sees nothing more, and is right."""
    said, twice = [0, 2, 0, 0, 0, 0, 0, 0, 0, 0], [0, 2, 0, 2, 0, 0, 0, 0, 0, 0]
    assert read(ReadingEngine(CLASSES), said, limit, sizes, ctc=twice)[0] == (2,)


def test_other_hypotheses_do_not_delay_the_best() -> None:
    """A lower hypothesis prefers <eos>: the best continues; all wait only if the best itself prefers <eos>."""

    class Torn(TableEngine):
        def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
            log_p = np.full(CLASSES, -9.0)
            log_p[[1, 2]] = (-0.3, -3.0) if prefix[-1] != 2 else (-9.0, -9.0)
            log_p[END] = -9.0 if prefix[-1] != 2 else -0.1
            return log_p, np.array([1, 1]), True

    config = DecodingConfig(beam=2, ctc_weight=0.0)
    searching = Search(Torn(0, CLASSES), lookahead, config, END, most_tokens_per_frame=0.1)
    beam = searching.advance(searching.start(), heard((0, 2, 4), some_ctc(0), 20), final=False)
    assert beam.best.tokens == (1, 1, 1)


def test_ctc_scores_include_the_spike_of_a_step() -> None:
    """Also if all heads have halted before it, and no further frames, even if more have arrived."""

    class Early(TableEngine):
        def _row(self, *given):  # type: ignore[no-untyped-def]
            return super()._row(*given)[0], np.array([1, 3]), True

    searching = Search(Early(0, CLASSES, end_bonus=-50.0), lookahead, DecodingConfig(beam=2), END)
    beam = searching.advance(searching.start(), heard((7,), some_ctc(0), 20), final=False)
    assert beam.ctc is not None
    assert beam.ctc.frames == 8
    assert all(len(h.tokens) == 1 for h in beam.live)


@settings(max_examples=30, deadline=None)
@given(seeds, speech, st.integers(2, 4))
def test_ctc_scores_the_frames_of_the_furthest_hypothesis(seed: int, spikes: tuple[int, ...], beam: int) -> None:
    """All hypotheses are scored on the frames that some answer depends on, not on those of the nearest."""
    config = DecodingConfig(beam=beam, ctc_weight=0.4, lookahead_frames=5)
    searching = Search(TableEngine(seed, CLASSES, -2.0), lookahead, config, END)
    now = searching.start()
    for frames in range(0, FRAMES, 3):
        now = searching.advance(now, heard(spikes, some_ctc(seed), frames), final=False)
        assert now.ctc is not None
        assert all(h.t <= now.ctc.frames for h in now.live)


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_every_policy_terminates(name: str) -> None:
    """For any number of postponements: the engine counts its calls."""
    for seed in range(10):
        searching = Search(TableEngine(seed, CLASSES, 3.0), LIMITS[name], DecodingConfig(beam=2), END)
        best = listen(searching, tuple(range(0, FRAMES, 3)), some_ctc(seed), [7, 20]).best
        assert best.steps


def test_a_step_without_a_limit_waits_for_the_evidence_after_what_it_saw() -> None:
    engine = Doubtful(CLASSES)
    log_ctc, memory = spoken(np.array(SCRIPT), END)
    evidence = CtcSpikes((2,), (2,))
    config = DecodingConfig(ctc_weight=0.0)
    memory = Memory(*(part[:, :, :, :6] for part in engine.place(memory, 0)))
    searching = Search(engine, unlimited, config, END)
    beam = searching.advance(searching.start(), SpeechFrames(memory, log_ctc[:6], evidence), final=False)
    assert beam.live[0].exhausted == 3  # frames 0 to 2 were seen; no limit is no place
    assert NO_LIMIT not in (h.exhausted for h in beam.live)


class Late(TableEngine):
    """After token 1 a step attends to 8 frames; after any other token to 30. Token 1 is the most likely."""

    def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
        halt = 8 if prefix[-1] == 1 else 6 if prefix[-1] == END else 30
        log_p = np.log(np.array([1e-9, 0.6, 0.3, 0.1, 1e-9]))
        ends = np.full(2, min(halt, limit, frames))
        return log_p, ends, final or halt <= min(limit, frames)


def test_the_best_hypothesis_does_not_wait_for_those_that_need_later_frames() -> None:
    config, log_ctc = DecodingConfig(beam=3, ctc_weight=0.0), some_ctc(0)
    spikes = (0, 4, 5, 6)
    for patience, tokens, live in ((4, 4, 3), (math.inf, 1, 3), (22, 1, 3)):
        searching = Search(Late(0, CLASSES), unlimited, config, END, patience_frames=patience)
        beam = searching.advance(searching.start(), heard(spikes, log_ctc, 12), final=False)
        assert (len(beam.best.tokens), len(beam.live)) == (tokens, live)
    waited = replace(searching, patience_frames=22)
    beam = waited.advance(waited.start(), heard(spikes, log_ctc, 30), final=False)
    assert any(2 in h.tokens[:-1] for h in beam.live), "answers that come in time are kept"
    by_frames = waited.start()
    for frames in range(31):
        by_frames = waited.advance(by_frames, heard(spikes, log_ctc, frames), final=False)
    assert by_frames.live == beam.live
