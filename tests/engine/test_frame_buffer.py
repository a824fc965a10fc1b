"""Frames that grow: views stay unchanged, whichever stream continues from them."""

from __future__ import annotations

import pickle

import numpy as np

from headsync.engine import Memory
from headsync.engine.frame_buffer import FrameBuffer, GrowingArray


def frames(first: int, count: int) -> Memory:
    numbers = np.arange(first, first + count, dtype=np.float32)[:, None]
    keys = np.broadcast_to(numbers, (1, 2, 3, count, 4)).copy()
    return Memory(keys, -keys)


def numbers_of(memory: Memory) -> list[int]:
    assert (memory.keys_BNHTD == memory.keys_BNHTD[:, :1, :1, :, :1]).all()
    assert (memory.values_BNHTD == -memory.keys_BNHTD).all()
    return memory.keys_BNHTD[0, 0, 0, :, 0].astype(int).tolist()


def test_frames_are_in_order_and_not_copied_each_time() -> None:
    memory, room, rooms = frames(0, 3), FrameBuffer(), set()
    for first in range(3, 99, 4):
        memory, room = room.append(memory, frames(first, 4))
        rooms.add(id(room))
        assert numbers_of(memory) == list(range(first + 4))
        assert memory.keys_BNHTD[:, 1].transpose(2, 0, 1, 3).flags.c_contiguous  # of a layer, in one piece
    assert len(rooms) <= 5  # 14, 30, 62, 126


def test_two_continuations_of_the_same_frames_are_independent() -> None:
    memory, room = FrameBuffer().append(frames(0, 3), frames(3, 2))
    one, one_room = room.append(memory, frames(5, 2))
    other, other_room = room.append(memory, frames(50, 2))
    one, _ = one_room.append(one, frames(7, 1))
    other, _ = other_room.append(other, frames(70, 1))
    assert numbers_of(memory) == [0, 1, 2, 3, 4]
    assert numbers_of(one) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert numbers_of(other) == [0, 1, 2, 3, 4, 50, 51, 70]


def test_an_unpickled_buffer_is_empty() -> None:
    memory, room = FrameBuffer().append(frames(0, 3), frames(3, 2))
    memory, room = pickle.loads(pickle.dumps((memory, room)))
    assert numbers_of(room.append(memory, frames(5, 1))[0]) == [0, 1, 2, 3, 4, 5]


def test_rows_of_an_array_grow_without_copying() -> None:
    content, room, rooms = np.arange(3.0)[:, None], GrowingArray(), set()
    for first in range(3, 99, 4):
        before = content
        content, room = room.append(content, np.arange(first, first + 4.0)[:, None])
        rooms.add(id(room))
        assert content[:, 0].tolist() == list(range(first + 4))
        assert before[:, 0].tolist() == list(range(first))
    assert len(rooms) <= 5
