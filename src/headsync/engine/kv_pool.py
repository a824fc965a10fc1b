"""Keys and values of the tokens of all hypotheses, each token stored once.

Hypotheses of a beam share prefixes. Keys and values of tokens are therefore slots of one pool, to which every step
appends, and a hypothesis is the list of its slots. Selecting hypotheses selects lists; keys and values are not copied.

A `Past` is a value: a pool is append-only, and a step reads exactly the slots that its hypotheses name. Its result does
not depend on what else has been appended to the pool. Slots that no hypothesis names are dropped when they outnumber
the others.

Shapes: B rows, L tokens written, P slots in use, N layers, E width.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headsync.engine import IntArray
from headsync.frontend.audio import FloatArray

HIDDEN = -1e30  # added to the energies of tokens that do not belong to the hypothesis
EMPTY = 0  # a slot without a token: it pads lists of unequal length, and graphs need at least one slot
SPARE_SLOTS = 32  # slots that may be unused before any are dropped

_THREAD = threading.local()
_NO_FLOATS = np.empty(0, np.float32)


class KeyValuePool:
    """Keys and values of tokens, (2, N, slots, E), with spare room."""

    def __init__(self, both: FloatArray) -> None:
        self.used = both.shape[2]
        self._both = _with_room(both)
        self._lock = threading.Lock()  # streams that share a pool may append at the same time

    def append(self, own_BNE: FloatArray) -> IntArray:
        """The slots of new tokens, whose query, key and value are concatenated."""
        _, keys_BNE, values_BNE = np.split(own_BNE, 3, axis=2)
        with self._lock:
            first, end = self.used, self.used + len(own_BNE)
            if end > self._both.shape[2]:
                self._both = _with_room(self._both[:, :, :first], end)
            self._both[0, :, first:end] = keys_BNE.transpose(1, 0, 2)
            self._both[1, :, first:end] = values_BNE.transpose(1, 0, 2)
            self.used = end
        return np.arange(first, end)

    def select(self, slots_P: IntArray) -> FloatArray:
        """Keys and values of ascending slots, (2, N, P, E), valid until the next call in the same thread."""
        if slots_P[-1] == len(slots_P) - 1:
            return self._both[:, :, : len(slots_P)]
        out = _scratch((2, self._both.shape[1], len(slots_P), self._both.shape[3]))
        return self._both.take(slots_P, axis=2, out=out, mode="clip")

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyValuePool, (self._both[:, :, : self.used].copy(),)


def _scratch(shape: tuple[int, ...]) -> FloatArray:
    """A reused array of this thread: a new allocation in every step would cost more than the copy."""
    size = math.prod(shape)
    if getattr(_THREAD, "scratch", _NO_FLOATS).size < size:
        _THREAD.scratch = np.empty(2 * size, np.float32)
    scratch: FloatArray = _THREAD.scratch[:size].reshape(shape)
    return scratch


def _with_room(both: FloatArray, least: int = 0) -> FloatArray:
    layers, used, width = both.shape[1:]
    wider = np.zeros((2, layers, 2 * max(used, least) + SPARE_SLOTS, width), both.dtype)
    wider[:, :, :used] = both
    return wider


@dataclass(frozen=True, eq=False)
class Past:
    """The tokens of some hypotheses; a leaf of a state tree, whose rows can be selected and joined."""

    pool: KeyValuePool
    slots_BL: IntArray
    written_B: IntArray

    @classmethod
    def start(cls, rows: int, layers: int, width: int) -> Past:
        pool = KeyValuePool(np.zeros((2, layers, 1, width), np.float32))  # with the empty slot
        return cls(pool, np.zeros((rows, 0), np.int64), np.zeros(rows, np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows; rows can be joined whatever else differs."""
        return self.written_B.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def __getitem__(self, rows: Any) -> Past:
        return Past(self.pool, self.slots_BL[rows], self.written_B[rows])

    def visible(self) -> tuple[FloatArray, FloatArray]:
        """The slots of these hypotheses alone, in the order of their tokens, and HIDDEN for those of other rows (B, P).

        Keys and values (2, N, P, E) are valid until the next step in the same thread.
        """
        slots_P = self._named_slots()
        hidden_BP = np.full((len(self.written_B), len(slots_P)), HIDDEN, np.float32)
        np.put_along_axis(hidden_BP, np.searchsorted(slots_P, self.slots_BL), np.float32(0), 1)
        hidden_BP[:, EMPTY] = HIDDEN
        return self.pool.select(slots_P), hidden_BP

    def appended(self, own_BNE: FloatArray) -> Past:
        """With one more token in each row: its query, key and value in every layer."""
        new_B = self.pool.append(own_BNE)
        return Past(self.pool, np.concatenate([self.slots_BL, new_B[:, None]], 1), self.written_B + 1)

    def compacted(self) -> Past:
        """The same value, in a new pool if these hypotheses use less than half of this one."""
        if self.pool.used <= 2 * self.slots_BL.shape[1] + SPARE_SLOTS:
            return self
        slots_P = self._named_slots()
        if self.pool.used <= 2 * len(slots_P) + SPARE_SLOTS:
            return self
        pool = KeyValuePool(self.pool.select(slots_P))
        return Past(pool, np.searchsorted(slots_P, self.slots_BL), self.written_B)

    @staticmethod
    def joined(pasts: Sequence[Past]) -> Past:
        """The rows of several, one after the other."""
        pools = list(dict.fromkeys(past.pool for past in pasts))
        pool, offsets = (pools[0], {pools[0]: 0}) if len(pools) == 1 else _joined(pools)
        longest = max(past.slots_BL.shape[1] for past in pasts)
        slots = [_padded(past.slots_BL, longest, offsets[past.pool]) for past in pasts]
        return Past(pool, np.concatenate(slots), np.concatenate([past.written_B for past in pasts]))

    def _named_slots(self) -> IntArray:
        """All slots that a row names, ascending, and the empty one."""
        return np.union1d(self.slots_BL, [EMPTY])


def _padded(slots_BL: IntArray, length: int, offset: int) -> IntArray:
    """Lists of slots in a joined pool, padded in front."""
    moved_BL = np.where(slots_BL == EMPTY, EMPTY, slots_BL + offset)
    return np.pad(moved_BL, ((0, 0), (length - slots_BL.shape[1], 0)), constant_values=EMPTY)


def _joined(pools: Sequence[KeyValuePool]) -> tuple[KeyValuePool, dict[KeyValuePool, int]]:
    """One pool with the slots of all pools, and the offset of each pool in it."""
    sizes = [pool.used for pool in pools]
    both = np.concatenate([pool._both[:, :, :size] for pool, size in zip(pools, sizes, strict=True)], 2)
    return KeyValuePool(both), dict(zip(pools, [0, *np.cumsum(sizes)[:-1].tolist()], strict=True))
