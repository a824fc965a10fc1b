"""The frames of an utterance: placed once, trimmed before it opens, and handed over where it ends."""

from __future__ import annotations

import numpy as np
import pytest

from fakes_engine import ReadingEngine
from headsync.decoding.encoder_stream import Block
from headsync.decoding.speech_buffer import SpeechBuffer
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import Memory


def numbered(first: int, end: int) -> Block:
    """Frames whose keys and CTC scores are their numbers in the stream."""
    numbers = np.arange(first, end, dtype=np.float32)
    keys = numbers[None, None, None, :, None]
    return Block(numbers[:, None], Memory(keys, np.zeros_like(keys)), 0.0)


def keys_of(buffer: SpeechBuffer) -> list[int]:
    assert buffer.memory is not None
    assert buffer.log_ctc_TV is not None
    assert buffer.log_ctc_TV[:, 0].tolist() == buffer.memory.keys_BNHTD.flatten().tolist()
    return buffer.memory.keys_BNHTD.flatten().astype(int).tolist()


def opened(most_left: int = 4) -> SpeechBuffer:
    """An utterance of the frames 5 to 19."""
    buffer = SpeechBuffer(ReadingEngine(3), most_left)
    return buffer.append(numbered(0, 8), 8).from_frame(5).placed().append(numbered(8, 30), 12)


def test_frames_before_an_utterance_are_dropped_and_its_own_are_placed() -> None:
    buffer = opened()
    assert (buffer.first_frame, buffer.frames) == (5, 15)
    assert keys_of(buffer) == list(range(5, 20))
    assert buffer.memory is not None
    assert buffer.memory.values_BNHTD.flatten().tolist() == list(range(15))
    assert buffer.placed() is buffer


@pytest.mark.parametrize("left", [1, 2, 4])
def test_the_next_utterance_begins_with_the_frames_behind_the_end(left: int) -> None:
    after = opened().after(20 - left)
    assert (after.first_frame, after.frames, after.is_placed) == (20 - left, left, False)
    assert keys_of(after) == list(range(20 - left, 20))
    assert after.memory is not None
    assert (after.memory.values_BNHTD == 0).all()  # not placed: they are placed anew
    assert keys_of(after.append(numbered(20, 30), 2)) == list(range(20 - left, 22))


def test_an_utterance_that_takes_all_frames_leaves_none() -> None:
    after = opened().after(20)
    assert (after.first_frame, after.frames, after.memory, after.log_ctc_TV) == (20, 0, None, None)


def test_spikes_are_counted_in_the_utterance() -> None:
    assert opened().speech(CtcSpikes((6, 11), (2, 1))).spikes == CtcSpikes((1, 6), (2, 1))
