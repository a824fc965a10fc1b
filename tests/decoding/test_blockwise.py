"""BS-DEC by its published and by its corrected rules, each against a literal loop."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import ReadingEngine, TableEngine, nothing_heard, spikes_of, spoken
from headsync.config import DecodingConfig, EndpointConfig
from headsync.decoding import ctc_prefix
from headsync.decoding.beam import Search
from headsync.decoding.blockwise import BlockwiseSearch, blank_alone
from headsync.decoding.decoder_stream import DecoderStream
from headsync.decoding.encoder_stream import Block
from headsync.decoding.hypothesis import Beam, Hypothesis, SpeechFrames
from headsync.decoding.lookahead import LIMITS
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.endpointing.endpointer import Endpointer
from headsync.events import Final, Partial
from headsync.text.vocabulary import Vocabulary
from reference.ctc import read

FRAMES = 30
Tokens = tuple[int, ...]

seeds = st.integers(0, 10_000)
speech = st.lists(st.integers(0, FRAMES - 1), max_size=8, unique=True).map(lambda places: tuple(sorted(places)))
cuts = st.lists(st.integers(0, FRAMES), max_size=6).map(sorted)


@pytest.fixture(autouse=True, scope="module")
def short_lead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headsync.endpointing.endpointer.LEAD_SECONDS", 0.24)
        yield


def search(engine: Any, rules: str, end: int, **given: Any) -> BlockwiseSearch:
    policy = "gated" if rules == "corrected" else "published"
    limits = {"most_tokens_per_frame": 0.2, "block_frames": 8, **given}
    own = {name: limits.pop(name) for name in ("most_tokens_per_frame", "block_frames")}
    config = DecodingConfig(policy=policy, **{"ctc_weight": 0.0, **limits})  # type: ignore[arg-type]
    return BlockwiseSearch(engine, LIMITS["bs-dec"], config, end, **own)


def some_ctc(seed: int, frames: int, classes: int) -> np.ndarray:
    return np.log(0.001 + np.random.default_rng(seed).dirichlet(np.full(classes, 0.4), size=frames))


def heard(log_ctc: np.ndarray, frames: int, spikes: tuple[int, ...] = ()) -> SpeechFrames:
    spikes = tuple(spike for spike in spikes if spike < frames)
    return SpeechFrames(nothing_heard(frames), log_ctc[:frames], CtcSpikes(spikes, (1,) * len(spikes)))


def log_p(engine: TableEngine, tokens: Tokens, frames: int) -> np.ndarray:
    """The decoder's scores after some tokens, given a number of frames."""
    return engine._row(np.array([engine.classes - 1, *tokens]), frames, frames, False, frames)[0]


# the rules


def published(engine: TableEngine, blocks: list[int], beam: int, most: float) -> list[list[tuple[float, Tokens]]]:
    """Without CTC: the texts and their scores after each block."""
    end, texts, after = engine.classes - 1, [(0.0, ())], []
    for frames in blocks:
        before = None
        while len(texts[0][1]) < 5 + most * frames:
            longer = []
            for score, tokens in texts:
                following = log_p(engine, tokens, frames)
                longer += [(score + following[token], (*tokens, token)) for token in range(1, end + 1)]
            best = sorted(longer, reverse=True)[:beam]
            if any(tokens[-1] == end or tokens[-1] in tokens[:-1] for _, tokens in best):
                break
            before, texts = texts, best
        texts = texts if before is None else before
        after.append(texts)
    return after


@pytest.mark.parametrize("beam", [1, 3])
def test_the_published_rules(beam: int) -> None:
    written = 0
    for seed in range(15):
        engine = TableEngine(seed, 20, end_bonus=-1.0)
        searching, now = search(engine, "published", 19, beam=beam), None
        blocks = [4, 9, 16, FRAMES]
        for frames, expected in zip(blocks, published(engine, blocks, beam, 0.2), strict=True):
            log_ctc = some_ctc(seed, FRAMES, 20)
            now = searching.advance(now or searching.start(), heard(log_ctc, frames), final=False)
            assert [h.tokens for h in now.live] == [tokens for _, tokens in expected]
            assert [h.score for h in now.live] == pytest.approx([score for score, _ in expected], abs=1e-9)
        written += len(expected[0][1])
    assert written > 10


class Paths:
    """Probabilities of CTC, from every path written out."""

    def __init__(self, log_ctc: np.ndarray) -> None:
        self.texts: Counter[Tokens] = Counter()
        for path in itertools.product(range(log_ctc.shape[1]), repeat=len(log_ctc)):
            self.texts[read(path)] += math.exp(sum(log_ctc[t, label] for t, label in enumerate(path)))

    def whole(self, tokens: Tokens) -> float:
        return math.log(self.texts[tokens]) if self.texts[tokens] else -math.inf

    def begins(self, tokens: Tokens) -> float:
        p = sum(p for text, p in self.texts.items() if text[: len(tokens)] == tokens)
        return math.log(p) if p else -math.inf


def corrected(
    engine: TableEngine, log_ctc: np.ndarray, spikes: tuple[int, ...], search: BlockwiseSearch
) -> list[list[tuple[float, float, Tokens]]]:
    """Joint score, the decoder's and the text, after each block."""
    config, end, after = search.config, engine.classes - 1, []
    texts: list[tuple[float, float, Tokens]] = [(0.0, 0.0, ())]
    for frames in range(search.block_frames, len(log_ctc) + 1, search.block_frames):
        before, paths = None, Paths(log_ctc[:frames])
        while len(texts[0][2]) < 5 + search.most_tokens_per_frame * frames:
            longer = []
            for _, attention, tokens in texts:
                following = log_p(engine, tokens, frames)
                for token in range(1, end + 1):
                    said = (*tokens, token)
                    ctc = paths.whole(tokens) if token == end else paths.begins(said)
                    score = attention + following[token]
                    again = token in tokens and paths.begins(said) < paths.whole(tokens)
                    joint = (1 - config.ctc_weight) * score + config.ctc_weight * ctc
                    longer.append((joint, score, said, token == end or again))
            longer = sorted((one for one in longer if one[0] > -math.inf), reverse=True)
            if not longer or longer[0][3]:
                break
            before, texts = texts, [one[:3] for one in longer if not one[3]][: config.beam]
        ripe = sum(spike < frames - config.lookahead_frames for spike in spikes)
        if before is not None and len(texts[0][2]) > ripe:
            texts = before
        after.append(texts)
    return after


def test_the_corrected_rules() -> None:
    lengths: Counter[int] = Counter()
    for seed in range(16):
        engine = TableEngine(seed, 4, end_bonus=-0.5)
        log_ctc, spikes = some_ctc(seed, 6, 4), [(0,), (0, 1), (1, 2, 3), ()][seed % 4]
        given = {"beam": 1 + seed % 3, "block_frames": 1 + seed % 2, "lookahead_frames": 2, "ctc_weight": 0.4}
        searching = search(engine, "corrected", 3, **given)
        now, block = searching.start(), searching.block_frames
        for n, expected in enumerate(corrected(engine, log_ctc, spikes, searching), 1):
            now = searching.advance(now, heard(log_ctc, n * block, spikes), final=False)
            assert [h.tokens for h in now.live] == [tokens for _, _, tokens in expected]
            assert [h.attention for h in now.live] == pytest.approx([one[1] for one in expected], abs=1e-9)
            assert {h.exhausted for h in now.live} == {n * block}
        lengths[len(now.live[0].tokens)] += 1
    assert len(lengths) > 2


# arrival


def listen(searching: BlockwiseSearch, log_ctc: np.ndarray, spikes: tuple[int, ...], arrivals: list[int]) -> Beam:
    beam = searching.start()
    for frames in arrivals:
        beam = searching.advance(beam, heard(log_ctc, frames, spikes), final=False)
    return searching.advance(beam, heard(log_ctc, len(log_ctc), spikes), final=True)


@settings(max_examples=15, deadline=None)
@given(seeds, speech, cuts, st.integers(1, 3), st.integers(1, 9), st.sampled_from([0.0, 0.4]))
def test_by_the_corrected_rules_arrival_changes_nothing(
    seed: int, spikes: tuple[int, ...], arrivals: list[int], beam: int, block: int, weight: float
) -> None:
    searching = search(
        TableEngine(seed, 8), "corrected", 7, beam=beam, block_frames=block, ctc_weight=weight, lookahead_frames=4
    )
    log_ctc = some_ctc(seed, FRAMES, 8)
    whole = listen(searching, log_ctc, spikes, [])
    for pieces in (arrivals, [*range(FRAMES + 1)]):
        by_pieces = listen(searching, log_ctc, spikes, pieces)
        assert (by_pieces.live, by_pieces.ended) == (whole.live, whole.ended)
    assert all(math.isfinite(h.score) for h in whole.ended)


def test_by_the_published_rules_the_text_depends_on_the_blocks() -> None:
    """The same frames in blocks of three and of fifteen; the corrected rules give one text for both."""
    differ = {"published": 0, "corrected": 0}
    for rules, seed in itertools.product(differ, range(15)):
        searching = search(TableEngine(seed, 20, end_bonus=-3.0), rules, 19, block_frames=3)
        log_ctc = some_ctc(seed, FRAMES, 20)
        one, other = (listen(searching, log_ctc, (), [*range(size, FRAMES + 1, size)]) for size in (3, 15))
        differ[rules] += one.best.tokens != other.best.tokens
        assert listen(searching, log_ctc, (), [*range(3, FRAMES + 1, 3)]).best == one.best
    assert differ["corrected"] == 0
    assert differ["published"] > 5


@settings(max_examples=15, deadline=None)
@given(seeds, speech, st.integers(1, 3), st.sampled_from(["published", "corrected"]))
def test_every_beam_descends_from_those_before_it(seed: int, spikes: tuple[int, ...], beam: int, rules: str) -> None:
    searching = search(TableEngine(seed, 8, -1.0), rules, 7, beam=beam, block_frames=3, lookahead_frames=4)
    now, log_ctc = searching.start(), some_ctc(seed, FRAMES, 8)
    for frames in range(5, FRAMES + 1, 5):
        before, now = now, searching.advance(now, heard(log_ctc, frames, spikes), final=False)
        assert now.ended == ()
        assert all(any(h.tokens[: len(old.tokens)] == old.tokens for old in before.live) for h in now.live)
        assert not any({0, 7} & set(h.tokens) for h in now.live)
        for h, prefix in zip(now.live, now.state[0], strict=True):
            assert (*prefix[1:], *h.tokens[-1:]) == h.tokens  # what the decoder has been told
    ended = searching.advance(now, heard(log_ctc, FRAMES, spikes), final=True)
    assert all(any(h.tokens[: len(old.tokens)] == old.tokens for old in now.live) for h in ended.ended)


@pytest.mark.parametrize("rules", ["published", "corrected"])
def test_where_the_first_block_is_the_last_it_is_the_offline_search(rules: str) -> None:
    for seed in range(8):
        engine, log_ctc = TableEngine(seed, 12, end_bonus=2.0), some_ctc(seed, FRAMES, 12)
        searching = search(engine, rules, 11, beam=2, ctc_weight=0.1, block_frames=FRAMES + 1)
        offline = Search(engine, LIMITS["softmax"], searching.config, 11, most_tokens_per_frame=0.2)
        expected = offline.advance(offline.start(), heard(log_ctc, FRAMES), final=True)
        beam = listen(searching, log_ctc, (), [])
        assert (beam.live, beam.ended) == (expected.live, expected.ended)


def test_what_was_scored_on_few_frames_is_scored_on_all_at_the_end() -> None:
    """The length limit is reached before the last frames arrive: these still count."""
    given = {"block_frames": 10, "lookahead_frames": 1, "most_tokens_per_frame": 0.01}
    searching = search(TableEngine(2, 8, -50.0), "corrected", 7, beam=3, ctc_weight=0.3, **given)
    log_ctc, spikes = some_ctc(2, FRAMES, 8), tuple(range(8))
    now = searching.advance(searching.start(), heard(log_ctc, 10, spikes), final=False)
    assert len(now.live[0].tokens) == 6
    ended = searching.advance(now, heard(log_ctc, 19, spikes), final=True)
    assert len(ended.live) == len(now.live)
    for h in ended.live:
        exact = float(spelt(h.tokens, log_ctc[:19]).psi_B[0])
        assert h.ctc == pytest.approx(exact, abs=1e-9)
        assert h.score == pytest.approx(0.7 * h.attention + 0.3 * exact, abs=1e-9)
    assert [h.ctc for h in ended.live] != [h.ctc for h in now.live]


# CTC


def spelt(tokens: Tokens, log_ctc: np.ndarray) -> ctc_prefix.CtcState:
    state = ctc_prefix.advance(ctc_prefix.start(1), log_ctc)
    for token in tokens:
        state = ctc_prefix.extend(state, [0], np.array([token]), log_ctc)
    return state


def test_as_published_only_blanks_continue_into_new_frames() -> None:
    log_ctc = some_ctc(3, 9, 4)
    before = spelt((1, 2), log_ctc[:5])
    after = blank_alone(before, log_ctc[5:])
    expected = [float(before.blank_BT[0, -1])]
    for t in range(5, 9):
        expected.append(expected[-1] + log_ctc[t, 0])
    np.testing.assert_allclose(after.blank_BT[0, 5:], expected, atol=1e-12)
    assert (after.label_BT[0, 6:] == -np.inf).all()
    np.testing.assert_array_equal(after.label_BT[0, :6], before.label_BT[0])
    assert after.frames == 9
    assert ctc_prefix.whole(after)[0] == pytest.approx(expected[-1], abs=1e-12)
    assert after.psi_B == before.psi_B


def test_a_label_that_lasts_into_the_next_block_is_lost_as_published_and_kept_as_corrected() -> None:
    p = np.full((8, 4), 0.01)
    p[:3, 0] = p[5:, 0] = 0.97
    p[3:5, 1] = 0.97  # in the last frame of the first block and the first of the second
    log_ctc = np.log(p)
    one = spelt((1,), log_ctc[:4])
    lost = ctc_prefix.whole(blank_alone(one, log_ctc[4:]))[0]
    exact = ctc_prefix.whole(spelt((1,), log_ctc))[0]
    assert exact > -0.5
    assert lost < exact - 4
    silence = ctc_prefix.whole(blank_alone(spelt((), log_ctc[:4]), log_ctc[4:]))[0]
    assert silence == pytest.approx(ctc_prefix.whole(spelt((), log_ctc))[0])  # it has no path but blanks


@pytest.mark.parametrize("rules", ["published", "corrected"])
def test_the_carried_scores_are_those_of_the_rules(rules: str) -> None:
    """After a block, CTC scores follow the rules: exact for all frames, or blanks from the previous block."""
    searching = search(
        TableEngine(5, 8, -4.0), rules, 7, ctc_weight=0.3, block_frames=6, lookahead_frames=1, most_tokens_per_frame=0.5
    )
    log_ctc, spikes = some_ctc(5, 12, 8), (0, 1, 2)
    first = searching.advance(searching.start(), heard(log_ctc, 6, spikes), final=False)
    assert first.live[0].tokens
    assert first.ctc is not None
    second = searching._carry(first, heard(log_ctc, 12, spikes), 12)
    assert second.ctc is not None
    exact = ctc_prefix.whole(spelt(first.live[0].tokens, log_ctc))[0]
    of_rules = exact if rules == "corrected" else ctc_prefix.whole(blank_alone(first.ctc, log_ctc[6:]))[0]
    assert ctc_prefix.whole(second.ctc)[0] == pytest.approx(of_rules, abs=1e-9)
    assert (abs(ctc_prefix.whole(second.ctc)[0] - exact) > 1e-3) == (rules == "published")


# what was heard

ENDPOINT = EndpointConfig(pause_seconds=0.4, longest_seconds=2.4)
VOCABULARY = Vocabulary("words", ("one", "two", "three"))


def told(script: list[int], rules: str, **given: Any) -> Hypothesis:
    """The best text before the end, all frames being one block."""
    labels = np.array(script, np.int64)
    log_ctc, memory = spoken(labels, VOCABULARY.end)
    engine = ReadingEngine(VOCABULARY.size)
    searching = search(engine, rules, VOCABULARY.end, block_frames=len(script), ctc_weight=0.3, **given)
    frames = SpeechFrames(engine.place(memory, 0), log_ctc, spikes_of(log_ctc))
    return searching.advance(searching.start(), frames, final=False).best


def test_a_token_may_repeat_with_ctc_support() -> None:
    script = [0, 1, 0, 2, 0, 1, 0, 3, 0, 0, 0, 0]
    assert told(script, "published").tokens == (1,)  # stops at the second 1, and goes back from 1 2
    assert told(script, "corrected", lookahead_frames=3).tokens == (1, 2, 1, 3)


def test_a_token_is_not_repeated_without_ctc_support() -> None:
    class Stammering(ReadingEngine):
        def decode(self, tokens_B, memory, state, window):  # type: ignore[no-untyped-def]
            step = super().decode(tokens_B, memory, state, window)
            ends = step.log_p_BV[:, -1] > -1
            step.log_p_BV[ends, -1], step.log_p_BV[ends, tokens_B[ends]] = -9.0, -0.1
            return step

    log_ctc, memory = spoken(np.array([0, 1, 0, 2, 0, 0, 0, 0]), VOCABULARY.end)
    engine = Stammering(VOCABULARY.size)
    spikes = CtcSpikes((1, 3), (1, 2))
    for weight in (0.0, 0.3):
        searching = search(
            engine, "corrected", VOCABULARY.end, block_frames=8, lookahead_frames=2, ctc_weight=weight, beam=2
        )
        now = searching.advance(searching.start(), SpeechFrames(engine.place(memory, 0), log_ctc, spikes), final=False)
        assert now.best.tokens == (1, 2)


@pytest.mark.parametrize(("silence", "kept"), [(4, (1,)), (5, (1, 2)), (6, (1, 2))])
def test_a_token_is_taken_back_until_the_lookahead_has_come(silence: int, kept: Tokens) -> None:
    script = [0, 1, 0, 0, 0, 0, 0, 2] + [0] * silence
    assert told(script, "corrected", lookahead_frames=5).tokens == kept
    assert told(script, "published").tokens == (1,)


def test_the_first_frames_of_the_speech() -> None:
    log_ctc, memory = spoken(np.array([0, 1, 0, 2, 0, 3]), 4)
    cut = SpeechFrames(memory, log_ctc, CtcSpikes((1, 3, 5), (1, 2, 3))).up_to(3)
    assert (cut.spikes.frames, cut.spikes.tokens, cut.frames) == ((1,), (1,), 3)
    assert cut.memory.keys_BNHTD[0, 0, 0, :, 0].tolist() == [0, 1, 0]
    assert len(cut.log_ctc_TV) == cut.memory.values_BNHTD.shape[3] == 3
    assert SpeechFrames(memory, log_ctc, CtcSpikes((3,), (1,))).up_to(3).spikes.frames == ()


scripts = st.lists(
    st.tuples(st.integers(1, 25), st.integers(1, 3)).map(lambda word: [0] * word[0] + [word[1]]), min_size=1, max_size=8
).map(lambda words: [label for word in words for label in word])


@settings(max_examples=30, deadline=None)
@given(scripts, st.integers(1, 30), st.integers(1, 3), st.sampled_from(["published", "corrected"]))
def test_no_word_is_lost_inserted_or_repeated(script: list[int], size: int, beam: int, rules: str) -> None:
    """The last token is in the last frame."""
    given = {"lookahead_frames": 4}
    searching = search(ReadingEngine(VOCABULARY.size), rules, VOCABULARY.end, beam=beam, ctc_weight=0.3, **given)
    now, events = DecoderStream.start(searching, Endpointer(ENDPOINT), VOCABULARY), []
    for begin in range(0, len(script), size):
        labels = np.array(script[begin : begin + size], np.int64)
        new, now = now.push(Block(*spoken(labels, VOCABULARY.end), 0.04 * (begin + len(labels))))
        events += new
    events += now.finish(0.04 * len(script))
    finals = [event for event in events if isinstance(event, Final)]
    said = [VOCABULARY.tokens[label - 1] for label in script if label]
    assert " ".join(final.text for final in finals).split() == said
    for event in events:
        if isinstance(event, Partial):
            (final,) = [final for final in finals if final.utterance == event.utterance]
            assert final.text.startswith(event.committed)
