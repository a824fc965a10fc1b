"""The rule that every stage keeps: state is a value, in and out, never on `self`.

A state is a tree: tensors, arrays or other leaves whose first axis is the batch, in tuples and NamedTuples. Because it
is a value, a stream can be paused, pickled, moved and resumed; any set of live streams can be a batch; and a beam is a
`take_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

S = TypeVar("S")


def take_rows(tree: S, rows: Sequence[int]) -> S:
    """The given batch rows of every leaf of a state tree, in that order; rows may repeat."""
    node: Any = tree
    if hasattr(node, "shape"):
        return node[list(rows)]  # type: ignore[no-any-return]
    if isinstance(node, tuple):
        parts = [take_rows(part, rows) for part in node]
        return type(node)(*parts) if hasattr(node, "_fields") else type(node)(parts)  # type: ignore[return-value]
    raise TypeError(f"a state is made of arrays and tuples, not of {type(node).__name__}")
