"""How far sounds stand out from the room: against a literal loop, for every cutting, and in what opens an utterance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import ReadingEngine, spoken
from headsync.audio import FloatArray
from headsync.blocks import Block
from headsync.config import DecodingConfig
from headsync.errors import ConfigError
from headsync.events import Final
from headsync.features import NUM_MEL, levels
from headsync.search.beam import Search
from headsync.search.evidence import Evidence
from headsync.search.foreground import NOTHING_HEARD
from headsync.search.policy import lookahead
from headsync.tokens import Vocabulary
from headsync.utterance import Utterance

VOCABULARY = Vocabulary("words", ("one", "two"))
CONFIG = DecodingConfig(
    lookahead_frames=4, trailing_seconds=0.4, onset=0.6, onset_pair=0.5, foreground_db=16.0, onset_behind=0.9
)


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
def test_any_cutting_is_the_literal_loop(frames: int, size: int, deviation: float, seed: int) -> None:
    level = np.random.default_rng(seed).normal(40, deviation, frames)
    found, now = [], NOTHING_HEARD
    for begin in range(0, frames, size):
        new, now = now.hear(level[begin : begin + size], 16.0)
        found += new.tolist()
        assert now.level_T.shape == NOTHING_HEARD.level_T.shape  # bounded, however long the stream
    assert found == literally(level, 16.0)


def test_no_frames_bring_nothing_new() -> None:
    stands_out_T, now = NOTHING_HEARD.hear(np.zeros(0), 16.0)
    assert len(stands_out_T) == 0
    assert now is NOTHING_HEARD


def test_levels_are_decibels() -> None:
    frames = np.full((3, NUM_MEL + 3), 5.0, np.float32)
    louder = frames + np.float32(np.log(10))  # ten times the energy
    louder[:, NUM_MEL:] = 99.0  # pitch is no energy
    assert levels(louder) - levels(frames) == pytest.approx(10.0, abs=1e-4)


def heard(*sounds: tuple[float, bool], config: DecodingConfig = CONFIG) -> bool:
    """Whether tokens of such probability open an utterance, each of which stands out or does not."""
    evidence = Evidence()
    for place, (sure, stands_out) in enumerate(sounds):
        log_ctc_V = np.full(4, -9.0)
        log_ctc_V[[0, 1 + place % 2]] = np.log([1 - sure, sure])
        evidence = evidence.add(log_ctc_V, config, stands_out)
    return evidence.clear


def test_more_is_asked_of_what_does_not_stand_out() -> None:
    assert heard((0.7, True))
    assert not heard((0.7, False))
    assert heard((0.95, False))
    assert heard((0.55, True), (0.55, True))
    assert not heard((0.55, False), (0.55, False))
    assert not heard((0.55, True), (0.55, False))
    assert heard((0.55, True), (0.65, False))
    assert heard((0.65, False), (0.65, False))
    strict = replace(CONFIG, onset=0.95)  # above what is asked behind the speaker: it is asked there as well
    assert not heard((0.92, True), config=strict)
    assert not heard((0.92, False), config=strict)


def say(level: FloatArray, at: int, sure: float, size: int, config: DecodingConfig = CONFIG) -> list[str]:
    """The word "two" is said in one frame, with that probability, in frames of these levels."""
    script = np.zeros(len(level), np.int64)
    script[at] = 2
    log_ctc_TV, memory = spoken(script, VOCABULARY.end)
    log_ctc_TV[at, [0, 2]] = np.log([1 - sure, sure])
    search = Search(ReadingEngine(VOCABULARY.size), lookahead, config, VOCABULARY.end)
    events, now = [], Utterance.start(search, VOCABULARY)
    for begin in range(0, len(level), size):
        part = slice(begin, begin + size)
        cut = type(memory)(*(x[:, :, :, part] for x in memory))
        new, now = now.push(Block(log_ctc_TV[part], cut, 0.04 * begin, level[part]))
        events += new
    return [event.text for event in events + now.finish(0.0)[0] if isinstance(event, Final)]


@pytest.mark.parametrize("size", [1, 12, 100])
def test_voices_behind_the_speaker_bring_no_word_in(size: int) -> None:
    room = np.tile([50.0, 55.0, 52.0, 58.0], 40)
    speaker = room.copy()
    speaker[95:101] = 75.0
    assert say(room, 100, 0.7, size) == []
    assert say(room, 100, 0.95, size) == ["two"]
    assert say(speaker, 100, 0.7, size) == ["two"]
    assert say(room, 100, 0.7, size, replace(CONFIG, foreground_db=0.0)) == ["two"]
    assert say(room[:20], 15, 0.7, size) == ["two"]  # too soon to know the room


@pytest.mark.parametrize("size", [1, 12, 100])
def test_a_steady_noise_is_no_voice_behind_the_speaker(size: int) -> None:
    noise = 60 + np.random.default_rng(0).normal(0, 0.3, 160)
    speaker = noise.copy()
    speaker[95:101] += 6.0
    assert say(noise, 100, 0.7, size) == []
    assert say(speaker, 100, 0.7, size) == ["two"]


def test_the_room_is_known_across_utterances() -> None:
    room = np.tile([50.0, 54.0], 200)
    room[100] = 80.0
    script = np.zeros(400, np.int64)
    script[[100, 200]] = 1, 2
    log_ctc_TV, memory = spoken(script, VOCABULARY.end)
    log_ctc_TV[[100, 200], 0] = np.log(0.3)
    log_ctc_TV[[100, 200], [1, 2]] = np.log(0.7)
    search = Search(ReadingEngine(VOCABULARY.size), lookahead, CONFIG, VOCABULARY.end)
    events, _ = Utterance.start(search, VOCABULARY).push(Block(log_ctc_TV, memory, 16.0, room))
    assert [event.text for event in events if isinstance(event, Final)] == ["one"]


def test_settings_that_make_no_sense() -> None:
    for wrong in ({"foreground_db": -1.0}, {"onset_behind": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            DecodingConfig(**wrong)
