"""The joint score: every scorer with its weight, the pre-beam, n-best hypotheses, and confidences."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fakes_engine import TableEngine, nothing_heard
from headsync.config import DecodingConfig
from headsync.decoding import scoring
from headsync.decoding.beam import Search, best_first
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Beam, SpeechFrames
from headsync.decoding.lookahead import lookahead
from headsync.decoding.scoring import JointScorer
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import NO_LIMIT, IntArray, State, Window
from reference.ctc import prefix_scores

CLASSES, FRAMES = 5, 12
END = CLASSES - 1
WRITES = 6  # seed of a table whose best text has tokens
LOG_CTC = np.log(np.random.default_rng(3).dirichlet([6.0, 1, 1, 1, 0.01], size=FRAMES))
HOTWORDS = Hotwords.build([((1, 2), 2.0), ((3,), 1.0)], CLASSES)
ALL = DecodingConfig(beam=400, ctc_weight=0.4, lm_weight=0.7, length_bonus=0.3, nbest=10)


class Unigrams:
    """A language model that prefers some tokens, and counts the tokens."""

    log_p = np.log(np.array([1e-300, 0.4, 0.1, 0.3, 0.2]))

    def start(self, batch: int) -> State:
        return (np.zeros((batch, 1)),)

    def step(self, tokens_B: IntArray, state: State) -> tuple[np.ndarray, State]:
        return self.log_p - 0.1 * state[0], (state[0] + 1,)


def search(seed: int, config: DecodingConfig = ALL) -> Search:
    engine = TableEngine(seed, CLASSES)
    return Search(engine, lookahead, config, END, Unigrams(), HOTWORDS, most_tokens_per_frame=0.01)


def finish(searching: Search, log_ctc: np.ndarray = LOG_CTC) -> Beam:
    """All frames at once, without spikes: everything is written at the end."""
    heard = SpeechFrames(nothing_heard(FRAMES), log_ctc, CtcSpikes())
    return searching.advance(searching.start(), heard, final=True)


def score_of(seed: int, text: tuple[int, ...]) -> dict[str, float]:
    """The parts of the score of a whole text, each computed separately."""
    engine = TableEngine(seed, CLASSES)
    state, attention = engine.start_decoder(1), 0.0
    window = Window(np.array([NO_LIMIT]), np.array([FRAMES]), np.array([True]))
    for before, token in itertools.pairwise((END, *text, END)):
        step = engine.decode(np.array([before]), nothing_heard(FRAMES), state, window)
        state, attention = step.state, attention + step.log_p_BV[0, token]
    lm = sum(Unigrams.log_p[token] - 0.1 * n for n, token in enumerate((*text, END)))
    hotwords = 2.0 * sum(pair == (1, 2) for pair in itertools.pairwise(text)) + 1.0 * text.count(3)
    ctc = prefix_scores(text, LOG_CTC)[1]
    joint = 0.6 * attention + 0.4 * ctc + 0.7 * lm + 0.3 * len(text) + hotwords
    return {"attention": attention, "ctc": ctc, "lm": lm, "hotwords": hotwords, "score": joint}


@pytest.mark.parametrize("seed", range(2))
def test_the_best_texts_of_all_by_all_scorers(seed: int) -> None:
    """A beam wide enough for all texts of up to five tokens finds the best of them in order."""
    beam = finish(search(seed))
    texts = [text for length in range(6) for text in itertools.product((1, 2, 3), repeat=length)]
    expected = sorted(texts, key=lambda text: -score_of(seed, text)["score"])
    readings = beam.nbest(10)
    assert [h.tokens for h in readings] == expected[: len(readings)]
    assert len(readings) == 10
    for h in readings:
        for part, value in score_of(seed, h.tokens).items():
            assert getattr(h, part) == pytest.approx(value, abs=1e-9), part
    assert beam.best == readings[0]


def test_the_best_texts_where_scores_only_fall() -> None:
    """The requested number of hypotheses is found, though none can be better than the first that has ended."""
    searching = replace(search(0, replace(ALL, length_bonus=0.0)), hotwords=None)
    texts = [text for length in range(6) for text in itertools.product((1, 2, 3), repeat=length)]
    scores = {text: score_of(0, text) for text in texts}
    expected = sorted(texts, key=lambda t: -scores[t]["score"] + 0.3 * len(t) + scores[t]["hotwords"])
    assert [h.tokens for h in finish(searching).nbest(10)] == expected[:10]


def test_readings_are_distinct_and_best_first() -> None:
    for seed in range(10):
        engine = TableEngine(seed, CLASSES, end_bonus=4.0)
        readings = finish(replace(search(seed, replace(ALL, beam=4, nbest=3)), engine=engine)).nbest(3)
        assert len({h.tokens for h in readings}) == len(readings) == 3
        assert [h.score for h in readings] == sorted((h.score for h in readings), reverse=True)


def test_more_readings_do_not_change_the_best() -> None:
    plain = replace(ALL, beam=5, length_bonus=0.0)
    for seed in range(20):
        searching = replace(search(seed, plain), hotwords=None)
        one, five = (finish(replace(searching, config=replace(plain, nbest=n))) for n in (1, 5))
        assert one.best.tokens == five.best.tokens
        assert one.best.score == pytest.approx(five.best.score)


def test_a_pre_beam_of_all_classes_but_the_blank_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        monkeypatch.setattr(scoring, "PRE_BEAM", 40)
        whole = finish(search(seed, replace(ALL, beam=4)))
        monkeypatch.setattr(scoring, "PRE_BEAM", CLASSES - 2)
        nearly = finish(search(seed, replace(ALL, beam=4)))
        assert [h.tokens for h in nearly.ended] == [h.tokens for h in whole.ended]
        assert [h.score for h in nearly.ended] == pytest.approx([h.score for h in whole.ended])


def test_as_published_the_pre_beam_is_half_as_wide_again_as_the_beam() -> None:
    joint_BV = np.random.default_rng(0).normal(size=(2, 30))
    for beam, most in ((1, 1), (2, 3), (10, 15), (15, 22)):
        scorer = JointScorer(DecodingConfig(beam=beam, policy="published"), 29)
        best_BK = scorer._pre_beam(joint_BV)
        expected = [sorted([*np.argsort(row[:29])[::-1][:most].tolist(), 29]) for row in joint_BV]  # <eos> beside them
        assert best_BK.tolist() == expected


@pytest.mark.parametrize("seed", range(10))
def test_rescoring_scores_the_texts_of_a_search_without_the_language_model(seed: int) -> None:
    config = replace(ALL, beam=6, nbest=1)
    plain = finish(replace(search(seed, replace(config, nbest=6)), language=None))
    found = finish(search(seed, replace(config, lm_use="rescoring")))
    parts = {h.tokens: score_of(seed, h.tokens) for h in plain.ended}
    assert {h.tokens for h in found.ended} == set(parts)
    for h in found.ended:
        assert h.lm == pytest.approx(parts[h.tokens]["lm"])
        (before,) = (other for other in plain.ended if other.tokens == h.tokens)
        assert h.score == pytest.approx(before.score + config.lm_weight * parts[h.tokens]["lm"])
    assert found.best.score == max(h.score for h in found.ended)


def test_rescoring_changes_which_text_is_the_best() -> None:
    given, changed = replace(ALL, beam=6, lm_use="rescoring", lm_weight=3.0), 0
    for seed in range(10):
        without = replace(search(seed, given), language=None)
        changed += finish(search(seed, given)).best.tokens != finish(without).best.tokens
    assert changed


def test_a_pre_beam_of_one_leaves_the_end_and_one_token() -> None:
    """CTC scores only the best tokens of the other scorers."""
    for seed in range(5):
        searching = search(seed, replace(ALL, beam=1, policy="published", lm_weight=0.0))
        searching = replace(searching, hotwords=None, language=None)
        sure = np.full((FRAMES, CLASSES), -20.0)
        sure[:, 0] = sure[5, 3] = -1e-3  # CTC would have nothing but 3
        heard = SpeechFrames(nothing_heard(FRAMES), sure, CtcSpikes((2,), (3,)))
        first = searching.advance(searching.start(), heard, final=False).live[0].tokens[:1]
        window = Window(np.array([2 + 16]), np.array([FRAMES]), np.array([False]))
        engine = TableEngine(seed, CLASSES)
        decoded = engine.decode(np.array([END]), nothing_heard(FRAMES), engine.start_decoder(1), window)
        best = 1 + int(decoded.log_p_BV[0, 1:END].argmax())
        assert first in ((), (best,))


def test_a_text_can_end_with_a_low_decoder_score() -> None:
    silence = np.full((FRAMES, CLASSES), -20.0)
    silence[:, 0] = -1e-3
    config = DecodingConfig(beam=1, ctc_weight=0.9, policy="published")
    searching = Search(TableEngine(0, CLASSES, end_bonus=-20.0), lookahead, config, END, most_tokens_per_frame=0.1)
    assert [h.tokens for h in finish(searching, silence).nbest(1)] == [()]


def test_confidences_are_posteriors_among_the_candidates() -> None:
    searching = search(WRITES, replace(ALL, beam=3, nbest=1))
    h = finish(searching).best
    assert h.tokens
    assert len(h.confidences) == len(h.tokens)
    for n, confidence in enumerate(h.confidences):
        prefix = h.tokens[:n]
        joint = {token: _joint(prefix, token) for token in range(1, CLASSES)}
        posterior = np.exp(joint[h.tokens[n]]) / sum(np.exp(value) for value in joint.values())
        assert confidence == pytest.approx(posterior)


def _joint(prefix: tuple[int, ...], token: int) -> float:
    """The score of a prefix with one token more, or with its end."""
    if token == END:
        return score_of(WRITES, prefix)["score"]
    text = (*prefix, token)
    parts, whole = score_of(WRITES, text), score_of(WRITES, (*text, 1))
    engine, state = TableEngine(WRITES, CLASSES), TableEngine(WRITES, CLASSES).start_decoder(1)
    window = Window(np.array([NO_LIMIT]), np.array([FRAMES]), np.array([True]))
    attention = 0.0
    for before, after in itertools.pairwise((END, *text)):
        step = engine.decode(np.array([before]), nothing_heard(FRAMES), state, window)
        state, attention = step.state, attention + step.log_p_BV[0, after]
    lm = sum(Unigrams.log_p[one] - 0.1 * n for n, one in enumerate(text))
    partial = 1.0 if token == 1 else 0.0  # of (1, 2), which is not yet complete
    assert whole["hotwords"] == parts["hotwords"]
    ctc = prefix_scores(text, LOG_CTC)[0]
    return 0.6 * attention + 0.4 * ctc + 0.7 * lm + 0.3 * len(text) + parts["hotwords"] + partial


def test_ctc_alone_ignores_the_decoder() -> None:
    config = DecodingConfig(beam=4, ctc_weight=1.0)
    sure = np.full((FRAMES, CLASSES), 1e-6)
    sure[:, 0] = 1.0
    sure[[2, 7]] = np.eye(CLASSES)[[3, 1]] + 1e-6
    log_ctc = np.log(sure / sure.sum(1, keepdims=True))
    for seed in range(3):
        assert finish(replace(search(seed, config), hotwords=None), log_ctc).best.tokens == (3, 1)


def test_hotwords_turn_a_close_decision() -> None:
    """With a boost a phrase is found that was not the best; without weight the model is not called."""
    config = DecodingConfig(beam=8, ctc_weight=0.0)
    turned = 0
    for seed in range(10):
        plain = Search(TableEngine(seed, CLASSES), lookahead, config, END, most_tokens_per_frame=0.01)
        without = finish(plain).best.tokens
        boosted = finish(replace(plain, hotwords=Hotwords.build([((2, 1, 3), 30.0)], CLASSES))).best.tokens
        assert any(boosted[n : n + 3] == (2, 1, 3) for n in range(len(boosted)))
        turned += boosted != without
    assert turned > 5


def test_a_bonus_makes_texts_longer() -> None:
    config = DecodingConfig(beam=8, ctc_weight=0.0)
    lengths = {}
    for bonus in (-2.0, 0.0, 2.0):
        found = [
            finish(replace(search(seed, replace(config, length_bonus=bonus)), language=None, hotwords=None))
            for seed in range(10)
        ]
        lengths[bonus] = sum(len(beam.best.tokens) for beam in found)
    assert lengths[-2.0] < lengths[0.0] < lengths[2.0]


def test_the_best_places_come_first_and_equal_ones_in_order() -> None:
    scores = np.array([[1.0, 3.0, -np.inf], [3.0, 3.0, 2.0]])
    assert best_first(scores, 2) == [(0, 1), (1, 0)]
    assert best_first(scores, 4) == [(0, 1), (1, 0), (1, 1), (1, 2)]
    assert best_first(scores, 50) == [(0, 1), (1, 0), (1, 1), (1, 2), (0, 0)]
