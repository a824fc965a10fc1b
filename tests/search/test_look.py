"""What is kept of a step for those who want to see where the heads looked."""

from __future__ import annotations

import numpy as np

from headsync.engine import Decoded
from headsync.search.hypothesis import Hypothesis
from headsync.search.look import Look, looks


def decoded(weights_BHT: list[list[list[float]]], end_BNH: list[list[list[int]]]) -> Decoded:
    rows = len(weights_BHT)
    weights = np.array(weights_BHT, np.float32)
    return Decoded(np.zeros((rows, 3), np.float32), np.array(end_BNH), np.ones(rows, bool), weights, ())


def test_only_the_frames_that_matter_are_kept() -> None:
    weights = [[[0.001, 0.25, 0.0, 0.12345, 0.0], [0.0, 0.0, 0.5, 0.009, 0.005]]]
    (look,) = looks(decoded(weights, [[[1, 1], [4, 3]]]), asked=True)
    assert look == Look(1, ((0.25, 0.0, 0.123), (0.0, 0.5, 0.009)), (4, 3))  # ends of the highest layer


def test_heads_that_looked_nowhere_have_no_frames() -> None:
    (look,) = looks(decoded([[[0.0, 0.001], [0.0, 0.0]]], [[[2, 2]]]), asked=True)
    assert look == Look(0, ((), ()), (2, 2))


def test_nothing_is_kept_unless_somebody_asks() -> None:
    assert looks(decoded([[[0.5]], [[0.5]]], [[[1]], [[1]]]), asked=False).tolist() == [None, None]
    look = Look(0, ((0.5,),), (1,))
    assert Hypothesis().looked(look) is None
    assert Hypothesis(looks=()).looked(look) == (look,)
