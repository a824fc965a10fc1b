"""CTC prefix scores: against every path written out, against the recursions, and the same however frames arrive."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.decoding import ctc_prefix
from headsync.decoding.ctc_prefix import CtcState, advance, extend, extensions, whole
from headsync.engine.state_tree import take_rows
from reference.ctc import prefix_scores, probability_of_prefix, probability_of_whole

CLASSES, FRAMES = 4, 5

seeds = st.integers(0, 10_000)


def some_ctc(seed: int, frames: int = FRAMES, sharpness: float = 0.7) -> np.ndarray:
    p = np.random.default_rng(seed).dirichlet(np.full(CLASSES, sharpness), size=frames)
    return np.log(p + 1e-12)


def every(state: CtcState) -> np.ndarray:
    return np.broadcast_to(np.arange(CLASSES), (len(state.psi_B), CLASSES))


def spelt(tokens: np.ndarray, log_p: np.ndarray, heard: list[int] | None = None) -> CtcState:
    """The state of prefixes; before token n, the frames up to `heard[n]` (default: all) have arrived."""
    batch, length = tokens.shape
    state = ctc_prefix.start(batch)
    for n, now in enumerate([*(heard or [len(log_p)] * length), len(log_p)]):
        state = advance(state, log_p[state.frames : max(now, state.frames)])
        if n < length:
            state = extend(state, list(range(batch)), tokens[:, n], log_p)
    return state


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_scores_are_sums_over_all_paths(length: int) -> None:
    log_p = some_ctc(length)
    prefixes = list(itertools.product(range(1, CLASSES), repeat=length))  # repeated labels among them
    tokens = np.array(prefixes, np.int64).reshape(len(prefixes), length)
    state = spelt(tokens, log_p)
    psi_BV = extensions(state, every(state), log_p)
    for row, prefix in enumerate(prefixes):
        assert np.exp(state.psi_B[row]) == pytest.approx(probability_of_prefix(prefix, log_p), abs=1e-9)
        assert np.exp(whole(state)[row]) == pytest.approx(probability_of_whole(prefix, log_p), abs=1e-9)
        for c in range(1, CLASSES):
            expected = probability_of_prefix((*prefix, c), log_p)
            assert np.exp(psi_BV[row, c]) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 30), st.lists(st.integers(1, CLASSES - 1), max_size=6), st.data())
def test_scores_do_not_depend_on_the_arrival_of_frames(
    seed: int, frames: int, tokens: list[int], data: st.DataObject
) -> None:
    """Both paths of every beginning are carried into new frames: equal to the recursions over the whole utterance."""
    log_p = some_ctc(seed, frames, sharpness=data.draw(st.sampled_from([0.05, 0.7, 5.0])))
    heard = sorted(data.draw(st.lists(st.integers(0, frames), min_size=len(tokens), max_size=len(tokens))))
    state = spelt(np.array([tokens], np.int64).reshape(1, -1), log_p, heard)
    psi, r = prefix_scores(tuple(tokens), log_p)
    np.testing.assert_allclose(state.psi_B[0], psi, atol=1e-9)
    np.testing.assert_allclose(whole(state)[0], r, atol=1e-9)
    psi_BV = extensions(state, every(state), log_p, negligible=0.0)
    for c in range(1, CLASSES):
        np.testing.assert_allclose(psi_BV[0, c], prefix_scores((*tokens, c), log_p)[0], atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(seeds, st.lists(st.integers(0, 20), max_size=5).map(sorted))
def test_any_cutting_of_the_frames_gives_the_same_state(seed: int, cuts: list[int]) -> None:
    log_p, tokens = some_ctc(seed, 20), np.array([[1, 2, 2], [3, 3, 1]])
    begun = spelt(tokens, log_p[:4])
    at_once, by_pieces = advance(begun, log_p[4:]), begun
    for cut in [*cuts, 20]:
        by_pieces = advance(by_pieces, log_p[by_pieces.frames : max(cut, by_pieces.frames)])
    for one, other in zip(at_once, by_pieces, strict=True):
        np.testing.assert_array_equal(one, other)


def test_some_candidates_are_scored_as_among_all() -> None:
    log_p = some_ctc(3, 25)
    state = spelt(np.array([[1, 2], [2, 2]]), log_p)
    of_all = extensions(state, every(state), log_p)
    some = np.array([[3, 2], [1, 2]])  # each row its own, a repeated label among them
    np.testing.assert_allclose(extensions(state, some, log_p), np.take_along_axis(of_all, some, 1), atol=1e-12)


def test_truncated_scores_equal_the_full_ones() -> None:
    """Peaked scores: most frames are left out, and no score changes by more than a billionth."""
    said = np.zeros(300, np.int64)
    said[::12] = np.random.default_rng(2).integers(1, CLASSES, 25)
    log_p = np.log(np.eye(CLASSES)[said] * (1 - 4e-4) + 1e-4)
    state = spelt(said[None, : 12 * 15 : 12], log_p)
    full = extensions(state, every(state), log_p, negligible=0.0)
    np.testing.assert_allclose(extensions(state, every(state), log_p)[:, 1:], full[:, 1:], atol=1e-9)
    looked_at = np.exp(state.label_BT - state.label_BT.max()) > ctc_prefix.NEGLIGIBLE
    assert looked_at.sum() < 200


def test_a_prefix_is_what_follows_it_and_its_end() -> None:
    log_p = some_ctc(7, frames=40)
    state = spelt(np.array([[1, 1, 2], [3, 2, 1]]), log_p)
    follow = np.logaddexp.reduce(extensions(state, every(state), log_p)[:, 1:], axis=1)
    np.testing.assert_allclose(state.psi_B, np.logaddexp(follow, whole(state)), atol=1e-9)


def test_more_frames_never_make_a_prefix_less_probable() -> None:
    log_p = some_ctc(3, frames=30)
    states = [spelt(np.array([[1, 2], [2, 2]]), log_p[:frames]).psi_B for frames in range(1, 31)]
    assert all((later >= earlier - 1e-12).all() for earlier, later in itertools.pairwise(states))


def test_a_row_does_not_depend_on_the_others_and_rows_can_be_taken() -> None:
    log_p, tokens = some_ctc(5, frames=20), np.array([[1, 1], [2, 3], [3, 1]])
    together = spelt(tokens, log_p[:12])
    taken = advance(take_rows(together, [2, 0, 2]), log_p[12:])
    for row, source in enumerate([2, 0, 2]):
        alone = advance(spelt(tokens[[source]], log_p[:12]), log_p[12:])
        for one, other in zip(alone, taken, strict=True):
            np.testing.assert_allclose(one[0], other[row], atol=1e-12)


def test_labels_of_no_probability_are_impossible_and_nothing_breaks() -> None:
    log_p = np.full((8, CLASSES), -np.inf)
    log_p[:, 0], log_p[3, 1], log_p[3, 0] = 0.0, np.log(0.5), np.log(0.5)
    state = spelt(np.array([[1], [2]]), log_p, heard=[2])
    assert state.psi_B[0] == pytest.approx(np.log(0.5), abs=1e-12)
    assert state.psi_B[1] < -600
    psi_BV = extensions(state, every(state), log_p)
    assert not np.isnan(psi_BV).any()
    assert (psi_BV[:, 1:] < -600).all()


def test_more_tokens_than_frames_are_impossible() -> None:
    log_p = some_ctc(1, 2)
    state = spelt(np.array([[1, 2, 3]]), log_p)
    assert state.psi_B[0] == whole(state)[0] == -np.inf
    assert (extensions(state, every(state), log_p) == -np.inf).all()
    back = advance(state, some_ctc(2, 5))  # and it can be, once there are enough
    np.testing.assert_allclose(back.psi_B[0], prefix_scores((1, 2, 3), np.concatenate([log_p, some_ctc(2, 5)]))[0])


def test_long_utterances_stay_exact() -> None:
    """Sums of log probabilities grow with the frames; their differences must stay precise."""
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(1500, CLASSES)) * 6
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    tokens = tuple(rng.integers(1, CLASSES, 12).tolist())
    state = spelt(np.array([tokens]), log_p, heard=[100 * n for n in range(1, 13)])
    psi, r = prefix_scores(tokens, log_p)
    np.testing.assert_allclose([state.psi_B[0], whole(state)[0]], [psi, r], atol=1e-9, rtol=0)


def test_a_state_survives_pickling() -> None:
    log_p = some_ctc(5, frames=20)
    state = spelt(np.array([[1, 2]]), log_p[:9])
    one, other = (advance(value, log_p[9:]) for value in (state, pickle.loads(pickle.dumps(state))))
    np.testing.assert_array_equal(one.psi_B, other.psi_B)
