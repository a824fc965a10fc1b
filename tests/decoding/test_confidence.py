"""Calibration of confidences, and the reliability table."""

from __future__ import annotations

import numpy as np
import pytest

from headsync.decoding.confidence import ScoredWord, calibrated, calibration_error, fit, reliability
from headsync.evaluation.error_rate import right_words


def judged(scale: float, offset: float, words: int = 4000, seed: int = 0) -> list[ScoredWord]:
    """Words of a model whose log odds are wrong by a known factor and shift."""
    random = np.random.default_rng(seed)
    claimed = random.uniform(0.02, 0.999, words)
    return [ScoredWord(float(p), bool(random.random() < calibrated(float(p), scale, offset))) for p in claimed]


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.4, -1.0), (2.0, 0.5)])
def test_the_fit_recovers_scale_and_offset(scale: float, offset: float) -> None:
    found_scale, found_offset = fit(judged(scale, offset))
    assert found_scale == pytest.approx(scale, rel=0.15, abs=0.05)
    assert found_offset == pytest.approx(offset, abs=0.15)


def test_after_the_fit_confidence_is_the_share_that_is_right() -> None:
    words = judged(0.3, -1.5)
    before = calibration_error(reliability(words))
    after = [ScoredWord(calibrated(word.confidence, *fit(words)), word.right) for word in words]
    assert before > 0.2
    assert calibration_error(reliability(after)) < 0.03


def test_calibrating_changes_no_order_and_by_default_nothing() -> None:
    claimed = [0.0, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0]
    mapped = [calibrated(p, 0.5, -1.0) for p in claimed]
    assert mapped == sorted(mapped)
    assert all(0 < p < 1 for p in mapped)
    assert [calibrated(p, 1.0, 0.0) for p in claimed] == pytest.approx(claimed, abs=2e-6)


def test_words_that_are_all_right_leave_the_fit_bounded() -> None:
    scale, offset = fit([ScoredWord(0.9, True)] * 50)
    assert np.isfinite([scale, offset]).all()
    assert calibrated(0.9, scale, offset) > 0.9


def test_the_table_counts_every_word_once() -> None:
    words = [
        ScoredWord(0.0, False),
        ScoredWord(0.49, True),
        ScoredWord(0.5, False),
        ScoredWord(0.995, True),
        ScoredWord(1.0, True),
    ]
    bins = reliability(words)
    assert [(each.low, each.words) for each in bins] == [(0.0, 2), (0.5, 1), (0.99, 2)]
    assert bins[0].right == 0.5
    assert bins[2].confidence == pytest.approx(0.9975)
    assert calibration_error(bins) == pytest.approx((2 * abs(0.245 - 0.5) + 0.5 + 2 * 0.0025) / 5)
    assert reliability([]) == []


@pytest.mark.parametrize(("reference", "hypothesis", "right"), [
    ("one two three", "one two three", [True, True, True]),
    ("one two three", "one nine three", [True, False, True]),
    ("one two three", "two three four", [True, True, False]),
    ("", "one", [False]),
    ("one", "", []),
])  # fmt: skip
def test_right_words(reference: str, hypothesis: str, right: list[bool]) -> None:
    assert right_words(reference, hypothesis) == right
