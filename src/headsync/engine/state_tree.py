"""State trees: selecting, joining and replacing batch rows.

Every stage takes its state as an argument and returns the next one. A state is a tree of tuples and NamedTuples whose
leaves are tensors, arrays or other objects with a batch axis. A stream can therefore be paused, pickled, moved and
resumed, streams can be batched, and pruning a beam selects rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

S = TypeVar("S")


def take_rows(tree: S, rows: Sequence[int]) -> S:
    """The given batch rows of every leaf, in that order; rows may repeat."""
    return _map(lambda leaf: leaf[list(rows)], tree)


def join_rows(*trees: S) -> S:
    """The rows of several trees of one structure, one after the other."""
    return _map(_join_leaves, *trees)


def put_rows(tree: S, rows: Sequence[int], values: S) -> S:
    """A tree with some of its rows replaced; the given tree is unchanged."""

    def put(leaf: Any, new: Any) -> Any:
        leaf = leaf.copy()
        leaf[list(rows)] = new
        return leaf

    return _map(put, tree, values)


def _map(function: Callable[..., Any], *trees: S) -> S:
    """Apply a function to the corresponding leaves of several trees."""
    first: Any = trees[0]
    if hasattr(first, "shape"):
        return function(*trees)  # type: ignore[no-any-return]
    if not isinstance(first, tuple):
        raise TypeError(f"a state consists of arrays and tuples, not of {type(first).__name__}")
    parts = [_map(function, *part) for part in zip(*trees, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)  # type: ignore[return-value]


def _join_leaves(*leaves: Any) -> Any:
    return leaves[0].joined(leaves) if hasattr(leaves[0], "joined") else np.concatenate(leaves)
