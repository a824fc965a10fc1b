"""The encoder frames of the open utterance.

Before an utterance, only the frames with which it may begin are kept; inside one, all of its frames. Memory does not
grow with the stream. The decoder needs the position of a frame in its utterance: the frames of an open utterance are
placed once (`Engine.place`), as they arrive. Its last frames are also kept unplaced, since the next utterance may begin
with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from headsync.decoding.encoder_stream import Block
from headsync.decoding.hypothesis import SpeechFrames
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import Engine, Memory
from headsync.engine.frame_buffer import FrameBuffer, GrowingArray
from headsync.frontend.audio import FloatArray


@dataclass(frozen=True)
class SpeechBuffer:
    """The frames of an utterance, or those that the next one may begin with; a value."""

    engine: Engine
    most_left: int  # frames that an utterance may leave to the next one
    first_frame: int = 0  # counted in the stream
    memory: Memory | None = None
    log_ctc_TV: FloatArray | None = None
    is_placed: bool = False
    room: FrameBuffer = field(default_factory=FrameBuffer)  # where placed frames grow
    ctc_room: GrowingArray = field(default_factory=GrowingArray)
    tail: Memory | None = None  # the last placed frames, before they were placed

    @property
    def frames(self) -> int:
        return 0 if self.log_ctc_TV is None else len(self.log_ctc_TV)

    def append(self, block: Block, count: int) -> SpeechBuffer:
        """With the first `count` frames of a block."""
        new, room, tail = _cut(block.memory, 0, count), self.room, self.tail
        if self.is_placed:
            assert self.memory is not None
            assert tail is not None
            tail = self._tail(_joined(tail, new))
            new, room = self.room.append(self.memory, self.engine.place(new, self.frames))
        elif self.memory is not None:
            new = _joined(self.memory, new)
        log_ctc_TV, ctc_room = block.log_ctc_TV[:count], self.ctc_room
        if self.log_ctc_TV is not None:
            log_ctc_TV, ctc_room = ctc_room.append(self.log_ctc_TV, log_ctc_TV)
        return replace(self, memory=new, room=room, tail=tail, log_ctc_TV=log_ctc_TV, ctc_room=ctc_room)

    def from_frame(self, frame: int) -> SpeechBuffer:
        """Without the frames before a frame of the stream; only before an utterance is placed."""
        drop = frame - self.first_frame
        if drop <= 0 or self.memory is None:
            return self
        assert self.log_ctc_TV is not None
        memory, log_ctc_TV = _cut(self.memory, drop, self.frames), self.log_ctc_TV[drop:].copy()
        return replace(self, memory=memory, log_ctc_TV=log_ctc_TV, first_frame=frame)

    def placed(self) -> SpeechBuffer:
        """As the frames of an open utterance."""
        if self.is_placed:
            return self
        assert self.memory is not None
        return replace(self, is_placed=True, memory=self.engine.place(self.memory, 0), tail=self._tail(self.memory))

    def after(self, frame: int) -> SpeechBuffer:
        """The frames left to the next utterance if the open one ends before a frame of the stream."""
        left = self.first_frame + self.frames - frame
        empty = SpeechBuffer(self.engine, self.most_left, frame)
        if not left:
            return empty
        assert self.tail is not None
        assert self.log_ctc_TV is not None
        there = self.tail.keys_BNHTD.shape[3]
        return replace(empty, memory=_cut(self.tail, there - left, there), log_ctc_TV=self.log_ctc_TV[-left:].copy())

    def speech(self, spikes: CtcSpikes) -> SpeechFrames:
        """The frames for the search, with the spikes of the stream in them."""
        assert self.memory is not None
        assert self.log_ctc_TV is not None
        return SpeechFrames(self.memory, self.log_ctc_TV, spikes.counted_from(self.first_frame))

    def _tail(self, memory: Memory) -> Memory:
        frames = memory.keys_BNHTD.shape[3]
        return _cut(memory, max(0, frames - self.most_left), frames)


def _joined(*memories: Memory) -> Memory:
    return Memory(*(np.concatenate(parts, 3) for parts in zip(*memories, strict=True)))


def _cut(memory: Memory, first: int, end: int) -> Memory:
    """Some frames of a memory, copied in the same memory layout, so that the rest can be freed."""
    return Memory(*(part[:, :, :, first:end].copy(order="K") for part in memory))
