"""The learning rate: the Noam schedule of section 5.1."""

from __future__ import annotations


def noam(update: int, width: int, factor: float, warmup: int) -> float:
    """Learning rate of update 1, 2, ...: warm up linearly, then fall with the root of the update.

    `factor` is the paper's "initial value".
    """
    return factor * width**-0.5 * min(update**-0.5, update * warmup**-1.5)
