from __future__ import annotations

import numpy as np
import pytest

from headsync.decoding.cost import cost_ratio, count_stops
from headsync.engine import NO_LIMIT, Window


def test_eq10_cost_ratio() -> None:
    layers, heads, steps, frames = 3, 4, 7, 50
    s = np.random.default_rng(0).integers(1, frames + 1, size=(layers, heads, steps))
    numerator = denominator = 0
    for layer in range(layers):
        for head in range(heads):
            for i in range(steps):
                numerator += int(s[layer, head, i])
                denominator += frames
    ratio = cost_ratio(numerator, layers=layers, heads=heads, steps=steps, frames=frames)
    assert ratio == pytest.approx(numerator / denominator, abs=1e-12)


def test_attention_to_everything_costs_one() -> None:
    assert cost_ratio(6 * 4 * 10 * 30, layers=6, heads=4, steps=10, frames=30) == 1.0


def test_no_steps_cost_nothing() -> None:
    assert cost_ratio(0, layers=6, heads=4, steps=0, frames=30) == 0.0


def test_more_frames_than_exist_cannot_be_consumed() -> None:
    with pytest.raises(AssertionError):
        cost_ratio(31, layers=1, heads=1, steps=1, frames=30)


def test_what_stopped_the_heads() -> None:
    """Two layers of two heads: stopped by the threshold, the limit, the end, and a head that was lost before."""
    end_BNH = np.array([
        [[3, 7], [9, 10]],  # may look at 10 of 12 frames
        [[3, 7], [9, 12]],  # may look at 14 of 12 frames, and no more will come
        [[3, 7], [9, 12]],  # the same, but more may come: the last head stopped at the frame that arrived last
        [[0, 7], [9, 12]],  # no limit, and no more will come
    ])  # fmt: skip
    window = Window(np.array([10, 14, 14, NO_LIMIT]), np.full(4, 12), np.array([False, True, False, True]))
    assert count_stops(end_BNH, window).tolist() == [[3, 1, 0], [3, 0, 1], [4, 0, 0], [2, 0, 2]]
