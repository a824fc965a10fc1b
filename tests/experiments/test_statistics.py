"""Statistics of results: differences and their intervals, and how heads share attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headsync.evaluation.error_rate import ErrorCounts
from headsync.experiments.plan import System
from headsync.experiments.report import Row, Table, differences, write_tables
from headsync.experiments.runs import SystemResult
from headsync.experiments.statistics import head_usage, paired_difference


def counts(errors: list[int]) -> list[ErrorCounts]:
    return [ErrorCounts(substitutions=n, words=5) for n in errors]


def test_fewer_errors_in_every_utterance_are_more_than_chance() -> None:
    gap = paired_difference(counts([0, 1] * 20), counts([1, 2] * 20))
    assert gap.points == pytest.approx(0.2)
    assert gap == pytest.approx((0.2, 0.2, 0.2))  # in every resample, because the bootstrap is paired
    assert gap.is_more_than_chance


def test_a_difference_in_one_utterance_may_be_chance() -> None:
    gap = paired_difference(counts([0] * 40), counts([3] + [0] * 39))
    assert gap.points == pytest.approx(3 / 200)
    assert gap.low == 0
    assert gap.high > gap.points
    assert not gap.is_more_than_chance


def test_the_sign_of_a_difference() -> None:
    one, other = counts([0, 1, 0, 2]), counts([1, 1, 2, 2])
    forth, back = paired_difference(one, other), paired_difference(other, one)
    assert forth == pytest.approx((-back.points, -back.high, -back.low))
    assert forth.points > 0


@pytest.mark.parametrize("more", [0, 1])
def test_a_difference_of_zero_has_no_minus_sign(more: int) -> None:
    words = 100_000  # one error is rounded to 0
    one, other = (SystemResult(0.0, n, words, None, 0.1, ((n, words),), ()) for n in (1, 1 + more))
    lines = differences([Row(System("A"), [other]), Row(System("B"), [one])])
    assert lines[0].startswith("B against A: +0.00% errors (+0.00% to +0.00%; ")


def test_overlap_of_heads_on_equal_and_on_disjoint_frames() -> None:
    weights = np.zeros((2, 1, 4), dtype=np.float32)
    weights[0, 0, :2] = weights[1, 0, 2:] = 0.5
    assert head_usage(weights).overlap == 0
    assert head_usage(weights).mass_H == (0.5, 0.5)
    assert head_usage(weights).spread == pytest.approx(1)
    weights[1] = weights[0] * 0.2  # the same place, less of it
    assert head_usage(weights).overlap == pytest.approx(1)
    assert head_usage(weights).mass_H == pytest.approx((1 / 1.2, 0.2 / 1.2))
    assert 0.5 < head_usage(weights).spread < 1


def test_evenness_of_a_layer_with_one_active_head() -> None:
    weights = np.zeros((4, 2, 3), dtype=np.float32)
    weights[2] = 1.0
    found = head_usage(weights)
    assert found.mass_H == (0, 0, 1, 0)
    assert (found.spread, found.overlap) == (pytest.approx(0.25), 0)


def test_tables_are_markdown_and_csv(tmp_path: Path) -> None:
    table = Table("t", "A table", ("system", "errors"), (("A, wide", "1 %"), ("B", "2 %")), ("A note.",))
    text = write_tables([table, table], tmp_path).read_text()
    assert text.count("### A table") == 2
    assert "| A, wide | 1 % |\n" in text
    assert "- A note." in text
    assert (tmp_path / "t.csv").read_text() == 'system,errors\n"A, wide",1 %\nB,2 %\n'
