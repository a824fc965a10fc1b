"""A buffer for the frames of an open utterance: appending does not copy the frames before.

The frames so far are views of an array with spare room. Appending writes into that room if these frames are the last
ones in it; otherwise, as for the second continuation of a copied stream, the frames move to a buffer of their own. So
no view ever changes. Frames are the leading axis in memory, so that those of a layer are contiguous.

Shapes: B rows, N layers, H heads, T frames, D head width.
"""

from __future__ import annotations

import numpy as np

from headsync.engine import Memory
from headsync.frontend.audio import FloatArray


class FrameBuffer:
    """Keys and values, and how many of their frames are in use."""

    def __init__(self) -> None:
        self._parts: tuple[FloatArray, ...] = ()  # (B, N, T, H, D)
        self._used = 0

    def append(self, memory: Memory, new: Memory) -> tuple[Memory, FrameBuffer]:
        """The frames of `memory` and the new ones; `memory` is copied if it is not the content of this buffer."""
        have, end = memory.keys_BNHTD.shape[3], memory.keys_BNHTD.shape[3] + new.keys_BNHTD.shape[3]
        fits = self._used == have and self._parts and end <= self._parts[0].shape[2]
        buffer = self if fits else _copied(memory, 2 * end)
        buffer._put(have, new)
        return Memory(*(part[:, :, :end].transpose(0, 1, 3, 2, 4) for part in buffer._parts)), buffer

    def _put(self, first: int, memory: Memory) -> None:
        self._used = first + memory.keys_BNHTD.shape[3]
        for part, frames in zip(self._parts, memory, strict=True):
            part[:, :, first : self._used] = frames.transpose(0, 1, 3, 2, 4)

    def __reduce__(self) -> tuple[type[FrameBuffer], tuple[()]]:
        return FrameBuffer, ()  # an unpickled stream allocates a new one


def _copied(memory: Memory, frames: int) -> FrameBuffer:
    buffer = FrameBuffer()
    rows, layers, heads, _, width = memory.keys_BNHTD.shape
    buffer._parts = tuple(np.empty((rows, layers, frames, heads, width), part.dtype) for part in memory)
    buffer._put(0, memory)
    return buffer
