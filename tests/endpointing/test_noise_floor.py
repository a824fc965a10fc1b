"""The noise floor: against a literal loop, for any chunking, and its effect on onsets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import ReadingEngine, spoken
from headsync.config import DecodingConfig, EndpointConfig
from headsync.decoding.beam import Search
from headsync.decoding.decoder_stream import DecoderStream
from headsync.decoding.encoder_stream import Block
from headsync.decoding.lookahead import lookahead
from headsync.endpointing.endpointer import STREAM_START, Endpointer
from headsync.endpointing.noise_floor import NoiseFloor
from headsync.events import Final
from headsync.frontend.audio import FloatArray
from headsync.frontend.features import NUM_MEL, Features
from headsync.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary("words", ("one", "two"))
CONFIG = EndpointConfig(pause_seconds=0.4, onset_probability=0.6, onset_pair=0.5, foreground_db=16.0)


def literally(level: FloatArray, most: float) -> list[bool]:
    """Frame by frame: how far the loudest of nine frames is above the level that a tenth of the 250 before stay below,
    against the least of `most` and six times the way from there to the middle one of those 250."""
    found = []
    for t in range(len(level)):
        before = sorted(level[max(0, t - 8 - 250) : max(0, t - 8)])
        if len(before) < 10:
            found.append(True)
            continue
        quiet, middle = before[int(0.1 * len(before))], before[int(0.5 * len(before))]
        found.append(max(level[max(0, t - 8) : t + 1]) >= quiet + min(most, 6 * (middle - quiet)))
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 600), st.integers(1, 40), st.floats(0.1, 15), st.integers(0, 2**32 - 1))
def test_any_cutting_equals_the_literal_loop(frames: int, size: int, deviation: float, seed: int) -> None:
    level = np.random.default_rng(seed).normal(40, deviation, frames)
    found: list[bool] = []
    now = NoiseFloor()
    for begin in range(0, frames, size):
        part = level[begin : begin + size]
        found += now.foreground(part, 16.0).tolist()
        now = now.add(part)
        assert now.level_T.shape == NoiseFloor().level_T.shape  # bounded, however long the stream
    assert found == literally(level, 16.0)


def test_levels_are_decibels() -> None:
    frames = np.full((3, NUM_MEL + 3), 5.0, np.float32)
    louder = frames + np.float32(np.log(10))  # ten times the energy
    louder[:, NUM_MEL:] = 99.0  # pitch is no energy
    assert Features().levels(louder) - Features().levels(frames) == pytest.approx(10.0, abs=1e-4)


def opens(*sounds: tuple[float, bool], config: EndpointConfig = CONFIG) -> bool:
    """Whether spikes of this probability, each above the noise floor or not, open an utterance."""
    endpointer, state = Endpointer(config), STREAM_START
    for place, (sure, foreground) in enumerate(sounds):
        log_ctc_V = np.full(4, -9.0)
        log_ctc_V[[0, 1 + place % 2]] = np.log([1 - sure, sure])
        state = endpointer._add(log_ctc_V, foreground, state)
    return state.is_open


def test_a_stronger_onset_is_required_near_the_noise_floor() -> None:
    assert opens((0.7, True))
    assert not opens((0.7, False))
    assert opens((0.95, False))
    assert opens((0.55, True), (0.55, True))
    assert not opens((0.55, False), (0.55, False))
    assert not opens((0.55, True), (0.55, False))
    assert opens((0.55, True), (0.65, False))
    assert opens((0.65, False), (0.65, False))
    strict = replace(CONFIG, onset_probability=0.95)  # above ONSET_BEHIND: it holds near the noise floor too
    assert not opens((0.92, True), config=strict)
    assert not opens((0.92, False), config=strict)


def stream(config: EndpointConfig) -> DecoderStream:
    search = Search(ReadingEngine(VOCABULARY.size), lookahead, DecodingConfig(lookahead_frames=4), VOCABULARY.end)
    return DecoderStream.start(search, Endpointer(config), VOCABULARY)


def say(level: FloatArray, at: int, sure: float, size: int, config: EndpointConfig = CONFIG) -> list[str]:
    """The word "two" is said in one frame, with that probability, in frames of these levels."""
    script = np.zeros(len(level), np.int64)
    script[at] = 2
    log_ctc_TV, memory = spoken(script, VOCABULARY.end)
    log_ctc_TV[at, [0, 2]] = np.log([1 - sure, sure])
    events, now = [], stream(config)
    for begin in range(0, len(level), size):
        part = slice(begin, begin + size)
        cut = type(memory)(*(x[:, :, :, part] for x in memory))
        new, now = now.push(Block(log_ctc_TV[part], cut, level[part], 0.04 * begin))
        events += new
    return [event.text for event in events + now.finish(0.0) if isinstance(event, Final)]


@pytest.mark.parametrize("size", [1, 12, 100])
def test_background_voices_do_not_open_an_utterance(size: int) -> None:
    room = np.tile([50.0, 55.0, 52.0, 58.0], 40)
    speaker = room.copy()
    speaker[95:101] = 75.0
    assert say(room, 100, 0.7, size) == []
    assert say(room, 100, 0.95, size) == ["two"]
    assert say(speaker, 100, 0.7, size) == ["two"]
    assert say(room, 100, 0.7, size, replace(CONFIG, foreground_db=0.0)) == ["two"]
    assert say(room[:20], 15, 0.7, size) == ["two"]  # the noise floor is still unknown


@pytest.mark.parametrize("size", [1, 12, 100])
def test_speech_in_steady_noise_is_foreground(size: int) -> None:
    noise = 60 + np.random.default_rng(0).normal(0, 0.3, 160)
    speaker = noise.copy()
    speaker[95:101] += 6.0
    assert say(noise, 100, 0.7, size) == []
    assert say(speaker, 100, 0.7, size) == ["two"]


def test_the_noise_floor_is_kept_across_utterances() -> None:
    room = np.tile([50.0, 54.0], 200)
    room[100] = 80.0
    script = np.zeros(400, np.int64)
    script[[100, 200]] = 1, 2
    log_ctc_TV, memory = spoken(script, VOCABULARY.end)
    log_ctc_TV[[100, 200], 0] = np.log(0.3)
    log_ctc_TV[[100, 200], [1, 2]] = np.log(0.7)
    events, _ = stream(CONFIG).push(Block(log_ctc_TV, memory, room, 16.0))
    assert [event.text for event in events if isinstance(event, Final)] == ["one"]
