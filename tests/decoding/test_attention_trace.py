"""Attention traces of output steps."""

from __future__ import annotations

import numpy as np

from headsync.decoding.attention_trace import AttentionTrace, traces
from headsync.decoding.hypothesis import Hypothesis
from headsync.engine import Decoded


def decoded(weights_BHT: list[list[list[float]]], end_BNH: list[list[list[int]]]) -> Decoded:
    rows = len(weights_BHT)
    weights = np.array(weights_BHT, np.float32)
    return Decoded(np.zeros((rows, 3), np.float32), np.array(end_BNH), np.ones(rows, bool), weights, ())


def test_only_the_frames_that_matter_are_kept() -> None:
    weights = [[[0.001, 0.25, 0.0, 0.12345, 0.0], [0.0, 0.0, 0.5, 0.009, 0.005]]]
    (look,) = traces(decoded(weights, [[[1, 1], [4, 3]]]), wanted=True)
    assert look == AttentionTrace(1, ((0.25, 0.0, 0.123), (0.0, 0.5, 0.009)), (4, 3))  # ends of the highest layer


def test_heads_without_weights_have_no_frames() -> None:
    (look,) = traces(decoded([[[0.0, 0.001], [0.0, 0.0]]], [[[2, 2]]]), wanted=True)
    assert look == AttentionTrace(0, ((), ()), (2, 2))


def test_without_attention_no_trace_is_kept() -> None:
    assert traces(decoded([[[0.5]], [[0.5]]], [[[1]], [[1]]]), wanted=False).tolist() == [None, None]
    look = AttentionTrace(0, ((0.5,),), (1,))
    assert Hypothesis().with_trace(look) is None
    assert Hypothesis(traces=()).with_trace(look) == (look,)
