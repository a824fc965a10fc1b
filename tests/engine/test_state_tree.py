"""State as a value: choosing rows of any state tree."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch

from headsync.engine.state_tree import join_rows, put_rows, take_rows


class Inner(NamedTuple):
    numbers: np.ndarray
    nothing: tuple[()]


class Tree(NamedTuple):
    tensor: torch.Tensor
    inner: Inner
    pair: tuple[np.ndarray, torch.Tensor]


def tree(rows: int) -> Tree:
    column = np.arange(rows)
    inner = Inner(np.stack([column, -column], 1), ())
    return Tree(torch.arange(rows), inner, (column * 1.5, torch.arange(rows)[:, None, None]))


@pytest.mark.parametrize("rows", [[], [0], [2, 0], [1, 1, 1, 0]])
def test_rows_are_taken_from_every_leaf_in_order(rows: list[int]) -> None:
    taken = take_rows(tree(3), rows)
    assert isinstance(taken, Tree)
    assert isinstance(taken.inner, Inner)
    assert taken.inner.nothing == ()
    assert taken.tensor.tolist() == rows
    assert taken.inner.numbers.tolist() == [[row, -row] for row in rows]
    assert taken.pair[0].tolist() == [1.5 * row for row in rows]
    assert taken.pair[1].shape == (len(rows), 1, 1)


def test_taking_rows_twice_is_taking_them_once() -> None:
    once, twice = take_rows(tree(4), [3, 1]), take_rows(take_rows(tree(4), [0, 3, 1]), [1, 2])
    assert torch.equal(once.tensor, twice.tensor)


def test_taken_rows_are_copies() -> None:
    before = tree(3)
    take_rows(before, [0, 1]).inner.numbers[:] = 99
    assert before.inner.numbers[0].tolist() == [0, 0]


def test_joined_rows_stand_one_after_the_other() -> None:
    first, second = (Inner(np.arange(rows)[:, None], (np.full(rows, rows),)) for rows in (2, 3))
    joined = join_rows(first, second)
    assert isinstance(joined, Inner)
    assert joined.numbers.ravel().tolist() == [0, 1, 0, 1, 2]
    assert joined.nothing[0].tolist() == [2, 2, 3, 3, 3]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        join_rows((np.zeros(1), np.zeros(1)), (np.zeros(1),))


def test_rows_are_replaced_in_a_copy() -> None:
    before = Inner(np.arange(3), ())
    after = put_rows(before, [2, 0], Inner(np.array([7, 8]), ()))
    assert after.numbers.tolist() == [8, 1, 7]
    assert before.numbers.tolist() == [0, 1, 2]


def test_an_empty_state_has_any_rows() -> None:
    assert take_rows((), [0, 5]) == ()


@pytest.mark.parametrize("wrong", [None, 3, [np.zeros(2)], {"a": np.zeros(2)}, (np.zeros(2), "x")])
def test_other_types_than_states_are_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="a state consists of arrays and tuples"):
        take_rows(wrong, [0])


def test_a_tree_survives_pickling() -> None:
    thawed = pickle.loads(pickle.dumps(Inner(np.arange(3), ())))
    assert thawed.numbers.tolist() == [0, 1, 2]
