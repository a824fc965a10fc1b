"""The beam search on small fake engines: greedy, exhaustive, waiting, and independent of the arrival of frames."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import TableEngine, nothing_heard
from headsync.config import DecodingConfig
from headsync.decoding.beam import Search
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Beam, Hypothesis, SpeechFrames
from headsync.decoding.lookahead import LAG_FRAMES, lookahead, whole_utterance
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import NO_LIMIT, Window
from headsync.events import Stops
from reference.ctc import prefix_scores

CLASSES = 5
END = CLASSES - 1

seeds = st.integers(0, 10_000)
speech = st.lists(st.integers(0, 39), max_size=8, unique=True).map(lambda places: tuple(sorted(places)))  # spikes
FRAMES = 40


def search(engine: TableEngine, beam: int = 1, m: int = 4, most: float = 0.2) -> Search:
    config = DecodingConfig(beam=beam, ctc_weight=0.0, lookahead_frames=m)
    return Search(engine, lookahead, config, engine.classes - 1, most_tokens_per_frame=most)


def frames_of(spikes: tuple[int, ...], frames: int) -> SpeechFrames:
    """Frames whose CTC scores contain only spikes; CTC has no weight in these searches."""
    return SpeechFrames(
        nothing_heard(frames),
        np.zeros((frames, CLASSES), np.float32),
        CtcSpikes(spikes, (1,) * len(spikes)).before(frames),
    )


def listen(searching: Search, spikes: tuple[int, ...], arrivals: list[int]) -> Beam:
    """Frames arrive up to each of `arrivals`; then the speech ends."""
    beam = searching.start()
    for frames in arrivals:
        beam = searching.advance(beam, frames_of(spikes, frames), final=False)
    return searching.advance(beam, frames_of(spikes, FRAMES), final=True)


def greedy(engine: TableEngine, spikes: tuple[int, ...], m: int, most: float) -> Hypothesis:
    """A reference without beams: the best token at every spike, and <eos> only at the end.

    Whoever prefers <eos> before waits for evidence, and if that changes nothing, writes the best of the others.
    """
    end = engine.classes - 1
    tokens: list[int] = []
    halts: list[int] = []
    confidences: list[float] = []
    score, searched, consumed, steps, final = 0.0, 0, 0, 0, False
    stops: Counter[str] = Counter()
    state, memory = engine.start_decoder(1), nothing_heard(FRAMES)
    while len(tokens) < 5 + most * FRAMES:
        t = halts[-1] if halts else 0
        spike = next((s for s in spikes[len(tokens) :] if s >= max(searched, t - LAG_FRAMES)), None)
        if spike is None and not final:
            final = True
            continue
        limit = NO_LIMIT if spike is None else max(t, spike + m)
        window = Window(np.array([limit]), np.array([FRAMES]), np.array([final]))
        step = engine.decode(np.array([tokens[-1] if tokens else end]), memory, state, window)
        if not step.ready_B[0]:
            final = True
            continue
        best = 1 + int(step.log_p_BV[0, 1:].argmax())
        if best == end and not final and step.end_BNH.max() > searched:
            searched = limit
            continue
        possible = step.log_p_BV[0, 1:] if final else step.log_p_BV[0, 1:end]
        best = 1 + int(possible.argmax())
        score, steps, consumed = score + float(step.log_p_BV[0, best]), steps + 1, consumed + int(step.end_BNH.sum())
        for s in step.end_BNH.flatten().tolist():
            stops["limit" if s >= limit else "end" if final and s >= FRAMES else "threshold"] += 1
        if best == end:
            break
        tokens.append(best)
        confidences.append(float(np.exp(possible[best - 1]) / np.exp(possible).sum()))
        halts.append(max(t, int(step.end_BNH.max())))
        state = step.state
    found = Hypothesis(tuple(tokens), score, score, tuple(halts), searched, consumed, steps, Stops(**stops))
    return replace(found, confidences=tuple(confidences))


@settings(max_examples=60, deadline=None)
@given(seeds, speech, st.integers(1, 8), st.sampled_from([-2.0, 0.0, 2.0]))
def test_a_beam_of_one_is_greedy(seed: int, spikes: tuple[int, ...], m: int, bonus: float) -> None:
    engine = TableEngine(seed, CLASSES, bonus)
    best, expected = listen(search(engine, 1, m), spikes, []).best, greedy(engine, spikes, m, 0.2)
    assert best.confidences == pytest.approx(expected.confidences)
    assert replace(best, confidences=()) == replace(expected, confidences=())


@settings(max_examples=60, deadline=None)
@given(seeds, speech, st.integers(1, 8), st.integers(1, 4), st.lists(st.integers(0, FRAMES), max_size=6).map(sorted))
def test_arrival_of_frames_changes_nothing(
    seed: int, spikes: tuple[int, ...], m: int, beam: int, arrivals: list[int]
) -> None:
    """Frames one by one, in any pieces, or all at once with the end: the same texts, scores, halts and costs."""
    searching = search(TableEngine(seed, CLASSES, 1.0), beam, m)
    at_once = listen(searching, spikes, [])
    for pieces in (arrivals, list(range(FRAMES + 1))):
        by_pieces = listen(searching, spikes, pieces)
        assert by_pieces.live == at_once.live
        assert by_pieces.ended == at_once.ended


def test_an_undecided_step_waits() -> None:
    """Until its heads have halted or all frames before the limit have arrived, a step does not change the beam."""
    halts = np.random.default_rng([0, END]).integers(1, 9, 2)
    searching = search(TableEngine(0, CLASSES, end_bonus=-50.0), m=6)
    for frames in range(1, FRAMES):
        beam = searching.advance(searching.start(), frames_of((0,), frames), final=False)
        assert beam.live[0].steps == (frames >= min(halts.max(), 6))
        if not beam.live[0].steps:
            assert beam.live == searching.start().live
    assert halts.max() > 1


@settings(max_examples=40, deadline=None)
@given(seeds, speech, st.integers(1, 4))
def test_end_is_never_written_before_the_end(seed: int, spikes: tuple[int, ...], beam: int) -> None:
    searching = search(TableEngine(seed, CLASSES, end_bonus=1.0), beam)
    now = searching.start()
    for frames in range(FRAMES):
        now = searching.advance(now, frames_of(spikes, frames), final=False)
        assert now.ended == ()
        assert not any({0, END} & set(h.tokens) for h in now.live)
    ended = searching.advance(now, frames_of(spikes, FRAMES), final=True)
    assert not any({0, END} & set(h.tokens) for h in (*ended.live, *ended.ended))


class Silent(TableEngine):
    """Attends to all frames before the limit and prefers <eos>."""

    def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
        log_p, ends, _ = super()._row(prefix, limit, frames, final, held)
        log_p[-1] = 50.0
        return log_p, np.full_like(ends, min(limit, frames)), frames >= limit or final


def test_a_hypothesis_that_prefers_to_end_waits_for_more_evidence() -> None:
    engine = Silent(0, CLASSES)
    searching = search(engine, m=4)
    held = searching.advance(searching.start(), frames_of((2, 3, 9), 30), final=False)
    assert [window.limit_B.tolist() for window in engine.asked] == [[6], [13]]  # 3 + 4 has been seen from 2 + 4 on
    assert held.live == (Hypothesis(exhausted=13),)
    assert searching.advance(held, frames_of((2, 3, 9), 30), final=False).live == held.live
    ended = searching.advance(held, frames_of((2, 3, 9), 30), final=True)
    assert engine.asked[-1].limit_B.tolist() == [NO_LIMIT]
    assert ended.best.tokens == ()
    assert ended.best.steps == 1


class Reads(TableEngine):
    """Reads 1 and 2, each at its spike, and then prefers <eos>."""

    def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
        _, ends, _ = super()._row(prefix, limit, frames, final, held)
        log_p = np.full(self.classes, -2.0)
        log_p[(1, 2, END)[min(len(prefix), 3) - 1]] = -0.5
        return log_p, np.full_like(ends, min(limit, frames)), frames >= limit or final


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(("phrase", "text"), [((2, 3, 1), (1, 2)), ((3, 1), (1, 2)), ((2, 3), (1, 2, 3))])
def test_an_incomplete_phrase_does_not_extend_a_text(phrase: tuple[int, ...], text: tuple[int, ...], beam: int) -> None:
    """A phrase that could be complete is written; one that would need words that were not spoken is not begun."""
    listening = replace(search(Reads(0, CLASSES), beam), hotwords=Hotwords.build([(phrase, 3.0)], CLASSES))
    for arrivals in ([], [20], [5, 20, 30]):
        assert listen(listening, (2, 9, 20), arrivals).best.tokens == text


def test_without_spikes_nothing_is_decoded_before_the_end() -> None:
    engine = TableEngine(0)
    searching = search(engine)
    beam = searching.advance(searching.start(), frames_of((), FRAMES), final=False)
    assert beam.live == searching.start().live
    assert engine.asked == []


@settings(max_examples=40, deadline=None)
@given(seeds, speech, st.integers(1, 8))
def test_t_never_passes_its_limit_and_never_falls(seed: int, spikes: tuple[int, ...], m: int) -> None:
    engine = TableEngine(seed, CLASSES, -1.0)
    best = listen(search(engine, m=m), spikes, [10, 20]).best
    assert best.halts == tuple(sorted(best.halts))
    limits = {NO_LIMIT, *(spike + m for spike in spikes), *best.halts}
    assert all(int(window.limit_B[0]) in limits for window in engine.asked)  # M from a spike, t_{i-1}, or at the end
    looked = np.maximum.accumulate([0, *(int(min(w.limit_B[0], w.frames_B[0])) for w in engine.asked)])
    assert all(halt <= looked[-1] for halt in best.halts)


def test_the_furthest_head_sets_t_and_it_never_falls() -> None:
    falls = 0
    for seed in range(20):
        engine = TableEngine(seed, CLASSES, end_bonus=-50.0)
        best = listen(search(engine, m=100), tuple(range(12)), []).best
        prefix, t = [END], 0
        for token, halt in zip(best.tokens, best.halts, strict=True):
            reached = np.random.default_rng([seed, *prefix]).integers(1, 6 + 3 * len(prefix), 2).max()
            falls += reached < t
            t = max(t, min(reached, FRAMES))
            assert halt == t
            prefix.append(token)
    assert falls > 10


@pytest.mark.parametrize("seed", range(10))
def test_a_beam_that_is_wide_enough_finds_the_best_of_all_texts(seed: int) -> None:
    engine = TableEngine(seed, 4, end_bonus=-1.0)
    most = math.ceil(5 + 0.01 * FRAMES)

    def scores(prefix: tuple[int, ...], state: tuple[object, ...], score: float) -> list[tuple[float, tuple[int, ...]]]:
        if len(prefix) == most:
            return [(score, prefix)]
        window = Window(np.array([NO_LIMIT]), np.array([FRAMES]), np.array([True]))
        step = engine.decode(np.array([prefix[-1] if prefix else 3]), nothing_heard(FRAMES), state, window)
        log_p = step.log_p_BV[0]
        longer = [one for token in (1, 2) for one in scores((*prefix, token), step.state, score + log_p[token])]
        return [(score + log_p[3], prefix), *longer]

    best = listen(search(engine, beam=300, most=0.01), (), []).best
    score, tokens = max(scores((), engine.start_decoder(1), 0.0))
    assert best.tokens == tokens
    assert best.score == pytest.approx(score, abs=1e-9)


def test_a_beam_of_four_mostly_scores_at_least_as_well_as_greedy() -> None:
    """Not a theorem, a beam may lose what greedy finds; on these tables it seldom does, and it often finds better."""
    better = worse = 0
    for seed in range(40):
        engine = TableEngine(seed, CLASSES, end_bonus=-0.5)
        one, four = (listen(search(engine, beam), (3, 8, 15, 22), [10, 25]).best.score for beam in (1, 4))
        better += four > one
        worse += four < one
    assert better >= 10
    assert worse <= 2


@settings(max_examples=30, deadline=None)
@given(seeds, speech, st.integers(1, 6))
def test_the_beam_is_sorted_and_its_state_belongs_to_it(seed: int, spikes: tuple[int, ...], beam: int) -> None:
    searching = search(TableEngine(seed, CLASSES, -1.0), beam)
    now = searching.advance(searching.start(), frames_of(spikes, FRAMES), final=False)
    assert 1 <= len(now.live) <= beam
    assert [h.score for h in now.live] == sorted((h.score for h in now.live), reverse=True)
    for hypothesis, prefix in zip(now.live, now.state[0], strict=True):
        assert (*prefix[1:], *hypothesis.tokens[-1:]) == hypothesis.tokens  # what the decoder has been told
        assert math.isfinite(hypothesis.score)
    assert len({h.tokens for h in now.live}) == len(now.live)


@pytest.mark.parametrize("beam", [1, 4, 50])
def test_a_beam_wider_than_the_vocabulary_holds_no_impossible_text(beam: int) -> None:
    searching = search(TableEngine(3, 4, end_bonus=-3.0), beam)
    now = searching.advance(searching.start(), frames_of((5, 10), FRAMES), final=False)
    assert now.ended == ()
    assert 1 <= len(now.live) <= min(beam, 2**2)
    assert all(set(h.tokens) <= {1, 2} and math.isfinite(h.score) for h in now.live)


def test_blank_never_stands_between_a_hypothesis_and_its_end() -> None:
    """The decoder's score of the blank means nothing: with or without it, <eos> is preferred to any token."""

    class Blank(TableEngine):
        def decode(self, *given):  # type: ignore[no-untyped-def]
            step = super().decode(*given)
            step.log_p_BV[:] = [-0.1, -5.0, -5.0, -5.0, -2.5]
            return step

    searching = search(Blank(0))
    assert searching.advance(searching.start(), frames_of((2,), 30), False).live[0].tokens == ()


def test_tokens_per_frame_are_bounded() -> None:
    searching = search(TableEngine(0, CLASSES, end_bonus=-50.0), most=0.1)
    best = listen(searching, tuple(range(40)), []).best
    assert len(best.tokens) == 9  # 5 + a tenth of 40


def test_offline_attention_waits_for_the_end() -> None:
    class Offline(TableEngine):
        def decode(self, *given):  # type: ignore[no-untyped-def]
            return super().decode(*given)._replace(ready_B=given[-1].final_B)

    config = DecodingConfig(ctc_weight=0.0)
    searching = Search(Offline(0, CLASSES), whole_utterance, config, END, most_tokens_per_frame=0.1)
    now = searching.start()
    for frames in (1, 20, FRAMES):
        now = searching.advance(now, frames_of((0,), frames), final=False)
        assert now.live[0].steps == 0
    assert searching.advance(now, frames_of((0,), FRAMES), final=True).best.tokens


def test_the_joint_score_is_the_weighted_sum_of_decoder_and_ctc() -> None:
    engine = TableEngine(3, CLASSES, end_bonus=3.0)
    searching = Search(engine, lookahead, DecodingConfig(beam=3, ctc_weight=0.4), END, most_tokens_per_frame=0.1)
    log_ctc = np.log(np.random.default_rng(1).dirichlet([30.0, 1, 1, 1, 1], size=FRAMES))
    spoken = frames_of((3, 9, 15), FRAMES)._replace(log_ctc_TV=log_ctc)
    beam = searching.advance(searching.start(), spoken, final=True)
    for h in (*beam.live, *beam.ended):
        psi, whole = prefix_scores(h.tokens, log_ctc)
        assert h.ctc == pytest.approx(whole if h in beam.ended else psi, abs=1e-9)
        assert h.score == pytest.approx(0.6 * h.attention + 0.4 * h.ctc, abs=1e-9)
    assert beam.ended


def test_ctc_can_overrule_the_decoder() -> None:
    engine = TableEngine(3, CLASSES)
    surely = np.full((FRAMES, CLASSES), 1e-6)
    surely[:, 0] = 1.0
    surely[[5, 15]] = np.eye(CLASSES)[[2, 1]] + 1e-6
    spoken = frames_of((5, 15), FRAMES)._replace(log_ctc_TV=np.log(surely / surely.sum(1, keepdims=True)))
    searching = Search(engine, lookahead, DecodingConfig(beam=4, ctc_weight=0.95), END, most_tokens_per_frame=0.1)
    assert searching.advance(searching.start(), spoken, final=True).best.tokens == (2, 1)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_scored_on_few_frames_is_scored_on_all_at_the_end(seed: int) -> None:
    """The length limit is reached before the last frames arrive: these still count, and may reorder hypotheses."""
    config = DecodingConfig(beam=4, ctc_weight=0.5, lookahead_frames=4)
    engine = TableEngine(seed, CLASSES, end_bonus=-50.0)
    searching = Search(engine, lookahead, config, END, most_tokens_per_frame=0.01)
    log_ctc = np.log(np.random.default_rng(seed).dirichlet([30.0, 1, 1, 1, 1], size=FRAMES))
    beam = searching.start()
    for frames in (10, 32):
        beam = searching.advance(
            beam, frames_of(tuple(range(8)), frames)._replace(log_ctc_TV=log_ctc[:frames]), final=False
        )
    assert len(beam.live[0].tokens) == 6
    beam = searching.advance(beam, frames_of(tuple(range(8)), FRAMES)._replace(log_ctc_TV=log_ctc), final=True)
    joint = [0.5 * h.attention + 0.5 * prefix_scores(h.tokens, log_ctc)[0] for h in beam.live]
    assert [h.score for h in beam.live] == pytest.approx(joint, abs=1e-9)
    assert beam.best.score == pytest.approx(max(joint))
    for hypothesis, prefix in zip(beam.live, beam.state[0], strict=True):
        assert (*prefix[1:], *hypothesis.tokens[-1:]) == hypothesis.tokens


class Repeats(TableEngine):
    """Writes 1 at every step, with certainty."""

    def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
        _, ends, _ = super()._row(prefix, limit, frames, final, held)
        log_p = np.full(self.classes, -6.0)
        log_p[1] = -0.01
        return log_p, np.full_like(ends, min(limit, frames)), frames >= limit or final


def heard(*tokens: tuple[int, int]) -> SpeechFrames:
    """Frames at which CTC is sure of these tokens, and of the blank elsewhere."""
    scores = np.full((FRAMES, CLASSES), 1e-6)
    scores[:, 0] = 1.0
    for frame, token in tokens:
        scores[frame] = np.eye(CLASSES)[token] + 1e-6
    log_ctc = np.log(scores / scores.sum(1, keepdims=True))
    return frames_of(tuple(frame for frame, _ in tokens), FRAMES)._replace(log_ctc_TV=log_ctc)


@pytest.mark.parametrize("beam", [1, 3])
def test_ctc_ends_a_text_whose_decoder_repeats_a_word(beam: int) -> None:
    """After the utterance no spike limits the steps, and <eos> is none of the best candidates."""
    config = DecodingConfig(beam=beam, ctc_weight=0.2)
    searching = Search(Repeats(0, CLASSES), lookahead, config, END, most_tokens_per_frame=0.2)
    assert searching.advance(searching.start(), heard((5, 1)), final=True).best.tokens == (1,)


class Spells(TableEngine):
    """Writes 1, 2, 2, which CTC knows by another token."""

    def _row(self, prefix, limit, frames, final, held):  # type: ignore[no-untyped-def]
        _, ends, _ = super()._row(prefix, limit, frames, final, held)
        log_p = np.full(self.classes, -30.0)
        log_p[END] = -9.0
        log_p[(1, 2, 2, END)[min(len(prefix), 4) - 1]] = -0.1
        return log_p, np.full_like(ends, min(limit, frames)), frames >= limit or final


def test_a_text_does_not_end_before_a_spike_that_is_left() -> None:
    """The joint score of the text without these tokens is higher, but <eos> is never the best candidate."""
    searching = Search(Spells(0, CLASSES), lookahead, DecodingConfig(beam=1, ctc_weight=0.2), END)
    spoken = heard((5, 1), (38, 3))
    spoken.log_ctc_TV[:, 2] = np.log(1e-12)
    assert searching.advance(searching.start(), spoken, final=True).best.tokens == (1, 2, 2)
