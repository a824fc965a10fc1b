"""CTC spikes: the frames at which the greedy CTC reading begins a token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from typing import NamedTuple


class CtcSpikes(NamedTuple):
    """Spikes in order; the caller chooses the frame from which they are counted."""

    frames: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def add(self, frame: int, token: int) -> CtcSpikes:
        """One more spike at the end."""
        return CtcSpikes((*self.frames, frame), (*self.tokens, token))

    def next_after(self, written: int, frame: int) -> int | None:
        """The frame of the first spike at or after `frame` that has at least `written` spikes before it."""
        first = max(written, bisect_left(self.frames, frame))
        return self.frames[first] if first < len(self.frames) else None

    def without_first(self, count: int) -> CtcSpikes:
        """The spikes after the first `count`."""
        return CtcSpikes(self.frames[count:], self.tokens[count:]) if count else self

    def without(self, tokens: Container[int]) -> CtcSpikes:
        """The spikes of other tokens."""
        kept = [(frame, token) for frame, token in zip(*self, strict=True) if token not in tokens]
        return CtcSpikes(*zip(*kept, strict=True)) if kept else NO_SPIKES

    def before(self, frame: int) -> CtcSpikes:
        """The spikes before a frame."""
        count = bisect_left(self.frames, frame)
        return CtcSpikes(self.frames[:count], self.tokens[:count])

    def counted_from(self, frame: int) -> CtcSpikes:
        """The same spikes, their frames counted from `frame`."""
        return self._replace(frames=tuple(spike - frame for spike in self.frames))


NO_SPIKES = CtcSpikes()
