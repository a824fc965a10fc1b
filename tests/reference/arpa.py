"""Back-off by its definition, n-gram by n-gram."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Table = Mapping[tuple[str, ...], tuple[float, float]]  # log10 p and back-off of each n-gram


def log_p(table: Table, context: Sequence[str], word: str) -> float:
    """Natural log p of a word after a context, which may be longer than those of the model."""
    longest = max(len(gram) for gram in table) - 1
    history = tuple(context)[len(context) - longest :] if len(context) > longest else tuple(context)
    if (*history, word) in table:
        return table[*history, word][0] * math.log(10)
    if not history:
        return -math.inf
    back_off = table[history][1] if history in table else 0.0
    return back_off * math.log(10) + log_p(table, history[1:], word)
