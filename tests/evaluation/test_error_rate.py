from __future__ import annotations

import numpy as np
import pytest

from headsync.evaluation.error_rate import ErrorCounts, bootstrap_interval, count_errors, invented_per_minute


@pytest.mark.parametrize(
    ("reference", "hypothesis", "substitutions", "deletions", "insertions"),
    [
        ("one two three", "one two three", 0, 0, 0),
        ("one two three", "one too three", 1, 0, 0),
        ("one two three", "one three", 0, 1, 0),
        ("one two three", "one two two three", 0, 0, 1),
        ("one two three", "", 0, 3, 0),
        ("", "nine nine", 0, 0, 2),
        ("", "", 0, 0, 0),
        ("one two", "three one", 0, 1, 1),
    ],
)
def test_edits(reference: str, hypothesis: str, substitutions: int, deletions: int, insertions: int) -> None:
    counts = count_errors(reference, hypothesis)
    assert counts == ErrorCounts(substitutions, deletions, insertions, len(reference.split()))


@pytest.mark.parametrize(
    ("reference", "hypothesis", "substitutions", "deletions", "insertions", "characters"),
    [
        ("我们 都是", "我们都试", 1, 0, 0, 4),  # spaces count for nothing, on either side
        ("call it", "corl in it", 2, 0, 2, 6),
        ("", "a b", 0, 0, 2, 0),
        ("abc", "", 0, 3, 0, 3),
    ],
)
def test_edits_of_characters(
    reference: str, hypothesis: str, substitutions: int, deletions: int, insertions: int, characters: int
) -> None:
    counts = count_errors(reference, hypothesis, "characters")
    assert counts == ErrorCounts(substitutions, deletions, insertions, characters)


def test_counts_add_up_and_the_rate_is_pooled_over_words() -> None:
    counts = count_errors("one two three four", "one two three") + count_errors("five", "six seven")
    assert counts == ErrorCounts(substitutions=1, deletions=1, insertions=1, words=5)
    assert counts.rate == pytest.approx(3 / 5)


def test_without_words_there_is_no_rate_and_no_interval_but_invented_words() -> None:
    counts = [count_errors("", "nine"), count_errors("", "")]
    assert sum(counts, ErrorCounts()).rate is None
    assert bootstrap_interval(counts) is None
    assert invented_per_minute(sum(counts, ErrorCounts()), 30.0) == pytest.approx(2.0)
    assert invented_per_minute(ErrorCounts(), 0.0) == 0.0


def test_the_interval_is_the_same_for_a_seed_and_lies_around_the_rate() -> None:
    rng = np.random.default_rng(0)
    counts = [ErrorCounts(substitutions=int(wrong), words=5) for wrong in rng.binomial(5, 0.1, size=200)]
    rate = sum(counts, ErrorCounts()).rate
    interval = bootstrap_interval(counts, seed=7)
    assert interval == bootstrap_interval(counts, seed=7)
    assert interval != bootstrap_interval(counts, seed=8)
    assert interval is not None
    assert rate is not None
    assert interval.low < rate < interval.high
    # 1000 independent words at 10 %: the standard error is 0.95 %, the interval about four of them wide.
    assert interval.high - interval.low == pytest.approx(4 * 0.0095, rel=0.25)


def test_the_interval_accounts_for_correlated_errors() -> None:
    spread = [ErrorCounts(substitutions=1, words=10)] * 100
    clumped = [ErrorCounts(substitutions=10, words=10)] * 10 + [ErrorCounts(words=10)] * 90
    assert bootstrap_interval(spread) == pytest.approx((0.1, 0.1))
    interval = bootstrap_interval(clumped)
    assert interval is not None
    assert interval.low < 0.06
    assert interval.high > 0.14


def test_draws_of_empty_references_only_are_left_out() -> None:
    interval = bootstrap_interval([ErrorCounts(deletions=1, words=2), ErrorCounts()])
    assert interval == pytest.approx((0.5, 0.5))
