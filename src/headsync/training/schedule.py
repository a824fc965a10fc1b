"""The learning rate: the Noam schedule of section 5.1."""

from __future__ import annotations


def noam(update: int, width: int, factor: float, warmup: int) -> float:
    """Rate of update 1, 2, ...: a linear rise, a fall with the root; `factor` is the paper's "initial value"."""
    return factor * width**-0.5 * min(update**-0.5, update * warmup**-1.5)
