"""Buffers for the frames of an open utterance: appending does not copy the frames before.

The frames so far are views of an array with spare room. Appending writes into that room if these frames are the last
ones in it; otherwise, as for the second continuation of a copied stream, the frames are copied to a new buffer. A
view never changes.

Shapes: B rows, N layers, H heads, T frames, D head width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headsync.engine import Memory
from headsync.frontend.audio import FloatArray


class GrowingArray:
    """An array with spare room along one axis, and the used length of the axis."""

    def __init__(self) -> None:
        self._array: FloatArray | None = None
        self._used = 0

    def append(self, content: FloatArray, new: FloatArray, axis: int = 0) -> tuple[FloatArray, GrowingArray]:
        """The content and the new part; the content is copied if it is not the content of this array."""
        have, end = content.shape[axis], content.shape[axis] + new.shape[axis]
        fits = self._used == have and self._array is not None and end <= self._array.shape[axis]
        grown = self if fits else _copied(content, 2 * end, axis)
        assert grown._array is not None
        grown._array[_span(axis, have, end)] = new
        grown._used = end
        return grown._array[_span(axis, 0, end)], grown

    def __reduce__(self) -> tuple[type[GrowingArray], tuple[()]]:
        return GrowingArray, ()  # an unpickled stream allocates a new one


class FrameBuffer:
    """Keys and values that grow; frames are contiguous for each layer."""

    def __init__(self, keys: GrowingArray | None = None, values: GrowingArray | None = None) -> None:
        self._parts = (keys or GrowingArray(), values or GrowingArray())

    def append(self, memory: Memory, new: Memory) -> tuple[Memory, FrameBuffer]:
        parts = zip(self._parts, memory, new, strict=True)
        grown = [part.append(_frames_third(old), _frames_third(more), 2) for part, old, more in parts]
        same = all(part is before for (_, part), before in zip(grown, self._parts, strict=True))
        buffer = self if same else FrameBuffer(*(part for _, part in grown))
        return Memory(*(_frames_third(frames) for frames, _ in grown)), buffer


def _frames_third(x_BNHTD: FloatArray) -> FloatArray:
    """(B, N, H, T, D) to (B, N, T, H, D), or back."""
    return x_BNHTD.transpose(0, 1, 3, 2, 4)


def _copied(content: FloatArray, size: int, axis: int) -> GrowingArray:
    grown = GrowingArray()
    grown._array = np.empty((*content.shape[:axis], size, *content.shape[axis + 1 :]), content.dtype)
    grown._array[_span(axis, 0, content.shape[axis])] = content
    return grown


def _span(axis: int, first: int, end: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, slice(first, end))
