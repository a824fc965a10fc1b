"""CTC prefix scores against every path written out, and in the joint search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headsync.search.ctc_prefix import prefix_scores
from reference.ctc import probability_of_prefix, probability_of_whole

CLASSES, FRAMES = 4, 6


def some_ctc(seed: int, frames: int = FRAMES) -> np.ndarray:
    p = np.random.default_rng(seed).dirichlet(np.full(CLASSES, 0.7), size=frames)
    return np.log(p + 1e-12)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_scores_are_sums_over_all_paths(length: int) -> None:
    log_p = some_ctc(length)
    prefixes = list(itertools.product(range(1, CLASSES), repeat=length))  # repeated labels among them
    tokens = np.array(prefixes, np.int64).reshape(len(prefixes), length)
    scores = prefix_scores(tokens, log_p)
    for row, prefix in enumerate(prefixes):
        assert np.exp(scores.psi_B[row]) == pytest.approx(probability_of_prefix(prefix, log_p), abs=1e-9)
        assert np.exp(scores.whole_B[row]) == pytest.approx(probability_of_whole(prefix, log_p), abs=1e-9)
        for c in range(1, CLASSES):
            expected = probability_of_prefix((*prefix, c), log_p)
            assert np.exp(scores.psi_BV[row, c]) == pytest.approx(expected, abs=1e-9)


def test_a_prefix_is_what_follows_it_and_its_end() -> None:
    log_p = some_ctc(7, frames=40)
    scores = prefix_scores(np.array([[1, 1, 2], [3, 2, 1]]), log_p)
    follow = np.logaddexp.reduce(scores.psi_BV[:, 1:], axis=1)
    np.testing.assert_allclose(scores.psi_B, np.logaddexp(follow, scores.whole_B), atol=1e-9)


def test_more_frames_never_make_a_prefix_less_probable() -> None:
    log_p = some_ctc(3, frames=30)
    tokens = np.array([[1, 2], [2, 2]])
    scores = [prefix_scores(tokens, log_p[:frames]).psi_B for frames in range(1, 31)]
    assert all((later >= earlier - 1e-12).all() for earlier, later in itertools.pairwise(scores))


def test_a_row_does_not_depend_on_the_others() -> None:
    log_p, tokens = some_ctc(5, frames=20), np.array([[1, 1], [2, 3], [3, 1]])
    together = prefix_scores(tokens, log_p)
    for row in range(3):
        alone = prefix_scores(tokens[row : row + 1], log_p)
        np.testing.assert_allclose(alone.psi_BV[0], together.psi_BV[row], atol=1e-12)
