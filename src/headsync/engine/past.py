"""What the hypotheses of a beam have written, as the decoder's self-attention sees it: each token once.

Hypotheses of a beam begin alike. So keys and values of tokens stand in one pool, to which every step adds those of its
rows; a hypothesis is the list of its places in the pool. To take rows is to take lists: nothing else is copied. Places
that no list names any more are left behind from time to time.

A pool is only ever added to, so that all pasts which share it stay as they are. Those who add to one pool take turns;
streams have pools of their own until a batch joins them, and batches are run one at a time.

Shapes: B rows, L tokens written, P places in the pool, N layers, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headsync.audio import FloatArray
from headsync.engine import IntArray

HIDDEN = -1e30  # as an energy: not to be looked at
NOWHERE = 0  # a place that is no token's: graphs want one, and it fills up the lists of those who have written less
SLACK = 32  # places that may be in vain before any are left behind


class Pool:
    """Keys and values of tokens, (2, N, P, E), with room behind them."""

    def __init__(self, layers: int, width: int, room: int = SLACK) -> None:
        self._both = np.zeros((2, layers, room, width), np.float32)
        self.used = 1  # NOWHERE

    def layer(self, part: int, layer: int) -> FloatArray:
        """The keys (0) or values (1) of all tokens in a layer, (P, E), in one piece."""
        piece: FloatArray = self._both[part, layer, : self.used]
        return piece

    def add(self, own_BNE: FloatArray) -> IntArray:
        """Where the new ones are; query, key and value stand side by side."""
        first, end = self.used, self.used + len(own_BNE)
        _, keys_BNE, values_BNE = np.split(own_BNE, 3, axis=2)
        if end > self._both.shape[2]:
            self._both = _with_room(self._both[:, :, :first], 2 * end)
        self._both[0, :, first:end] = keys_BNE.transpose(1, 0, 2)
        self._both[1, :, first:end] = values_BNE.transpose(1, 0, 2)
        self.used = end
        return np.arange(first, end)

    def kept(self, places_P: IntArray) -> Pool:
        """A pool of these places alone."""
        pool = Pool.__new__(Pool)
        pool._both = _with_room(self._both[:, :, places_P], 2 * len(places_P) + SLACK)
        pool.used = len(places_P)
        return pool

    def __getstate__(self) -> dict[str, Any]:
        return {"_both": self._both[:, :, : self.used].copy(), "used": self.used}


def _with_room(both: FloatArray, room: int) -> FloatArray:
    wider = np.zeros((*both.shape[:2], room, both.shape[3]), both.dtype)
    wider[:, :, : both.shape[2]] = both
    return wider


@dataclass(frozen=True, eq=False)
class Past:
    """The tokens of some hypotheses; a leaf of a state tree, whose rows can be taken and joined."""

    pool: Pool
    places_BL: IntArray
    written_B: IntArray

    @classmethod
    def start(cls, rows: int, layers: int, width: int) -> Past:
        return cls(Pool(layers, width), np.zeros((rows, 0), np.int64), np.zeros(rows, np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows; of the rest nothing has to agree for rows to be joined."""
        return self.written_B.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def __getitem__(self, rows: Any) -> Past:
        return Past(self.pool, self.places_BL[rows], self.written_B[rows])

    def hidden(self) -> FloatArray:
        """What each row may not see of the pool, as something to add to energies."""
        hidden_BP = np.full((len(self.written_B), self.pool.used), HIDDEN, np.float32)
        np.put_along_axis(hidden_BP, self.places_BL, np.float32(0), 1)
        hidden_BP[:, NOWHERE] = HIDDEN
        return hidden_BP

    def grown(self, own_BNE: FloatArray) -> Past:
        """With one token more in each row: its query, key and value in every layer."""
        new_B = self.pool.add(own_BNE)
        return Past(self.pool, np.concatenate([self.places_BL, new_B[:, None]], 1), self.written_B + 1)

    def lean(self) -> Past:
        """The same, in a pool of its own if most of this one is of no use to it."""
        if self.pool.used <= 2 * self.places_BL.shape[1] + SLACK:
            return self
        places = np.union1d(self.places_BL, [NOWHERE])
        if self.pool.used <= 2 * len(places) + SLACK:
            return self
        return Past(self.pool.kept(places), np.searchsorted(places, self.places_BL), self.written_B)

    @staticmethod
    def joined(pasts: Sequence[Past]) -> Past:
        """The rows of several, one after the other."""
        if all(past.pool is pasts[0].pool for past in pasts):
            pool, moves = pasts[0].pool, [0] * len(pasts)
        else:
            pool, moves = _joined([past.pool for past in pasts])
        longest = max(past.places_BL.shape[1] for past in pasts)
        places = [
            np.pad(np.where(past.places_BL == NOWHERE, NOWHERE, past.places_BL + move),
                   ((0, 0), (longest - past.places_BL.shape[1], 0)), constant_values=NOWHERE)
            for past, move in zip(pasts, moves, strict=True)
        ]  # fmt: skip
        return Past(pool, np.concatenate(places), np.concatenate([past.written_B for past in pasts]))


def _joined(pools: Sequence[Pool]) -> tuple[Pool, list[int]]:
    """One pool with all that is in them, and where in it each of them begins."""
    ends = np.cumsum([pool.used for pool in pools])
    joined = Pool.__new__(Pool)
    both = np.concatenate([pool._both[:, :, : pool.used] for pool in pools], 2)
    joined._both, joined.used = _with_room(both, 2 * both.shape[2] + SLACK), both.shape[2]
    return joined, [0, *ends[:-1].tolist()]
