"""Frames of an utterance that grow without being copied each time: there is room behind them.

Who appends gets the frames so far as a view, and what others hold of them stays as it is. Room is used by one who goes
on from where it was left; whoever goes on from before, as a copy of a stream does, finds it used and takes a room of
his own. In memory frames come first, so that those of a layer lie in one piece.

Shapes: B rows, N layers, H heads, T frames, D head width.
"""

from __future__ import annotations

import numpy as np

from headsync.audio import FloatArray
from headsync.engine import Memory


class Room:
    """Keys and values, and how many of their frames are there."""

    def __init__(self) -> None:
        self._parts: tuple[FloatArray, ...] = ()  # (B, N, T, H, D)
        self._used = 0

    def append(self, memory: Memory, new: Memory) -> tuple[Memory, Room]:
        """The frames of `memory`, which are those in this room or else are copied, and behind them the new ones."""
        have, end = memory.keys_BNHTD.shape[3], memory.keys_BNHTD.shape[3] + new.keys_BNHTD.shape[3]
        room = self if self._used == have and self._parts and end <= self._parts[0].shape[2] else _room(memory, 2 * end)
        room._put(have, new)
        return Memory(*(part[:, :, :end].transpose(0, 1, 3, 2, 4) for part in room._parts)), room

    def _put(self, first: int, memory: Memory) -> None:
        self._used = first + memory.keys_BNHTD.shape[3]
        for part, frames in zip(self._parts, memory, strict=True):
            part[:, :, first : self._used] = frames.transpose(0, 1, 3, 2, 4)

    def __reduce__(self) -> tuple[type[Room], tuple[()]]:
        return Room, ()  # who wakes up elsewhere makes a new one


def _room(memory: Memory, frames: int) -> Room:
    room = Room()
    rows, layers, heads, _, width = memory.keys_BNHTD.shape
    room._parts = tuple(np.empty((rows, layers, frames, heads, width), part.dtype) for part in memory)
    room._put(0, memory)
    return room
