"""Learning rates: the Noam schedule of section 5.1 for recognisers, decay by epochs for language models."""

from __future__ import annotations


def noam(update: int, width: int, factor: float, warmup: int) -> float:
    """Learning rate of update 1, 2, ...: warm up linearly, then fall with the root of the update.

    `factor` is the paper's "initial value".
    """
    return factor * width**-0.5 * min(update**-0.5, update * warmup**-1.5)


def decayed(epoch: int, rate: float, decay: float, after: int) -> float:
    """Learning rate of epoch 0, 1, ...: `rate` in the first `after`, then `decay` times that of the epoch before."""
    return rate * decay ** max(0, epoch + 1 - after)
