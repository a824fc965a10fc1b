"""The endpointer: which frames open an utterance, which close it, and how the silence between two is shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headsync.config import EndpointConfig
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.endpointing.endpointer import STREAM_START, Decision, Endpointer, EndpointState
from headsync.errors import ConfigError

NEVER = EndpointConfig(pause_seconds=1e4, longest_seconds=1e4, silence_seconds=1e4)
labels = st.lists(st.integers(0, 3), max_size=30)


def step(
    log_ctc: np.ndarray, config: EndpointConfig = NEVER, state: EndpointState = STREAM_START
) -> tuple[Decision, EndpointState]:
    return Endpointer(config).step(log_ctc, state)


def sure(sequence: list[int], classes: int = 5) -> np.ndarray:
    """CTC scores of frames with these labels."""
    log_ctc = np.full((len(sequence), classes), -9.0, np.float32)
    log_ctc[np.arange(len(sequence)), sequence] = -0.01
    return log_ctc


def sounds(probabilities: list[float], first: int = 0) -> np.ndarray:
    """Every frame is another token with that probability, or blank below 1/2."""
    log_ctc = np.full((len(probabilities), 4), -9.0)
    for n, probability in enumerate(probabilities):
        log_ctc[n, 0], log_ctc[n, 1 + (first + n) % 2] = np.log1p(-probability), np.log(probability + 1e-9)
    return log_ctc


def listen(probabilities: list[float], config: EndpointConfig, state: EndpointState = STREAM_START) -> EndpointState:
    """The state after these frames; no endpoint is due in them."""
    decision, after = step(sounds(probabilities, state.frames), config, state)
    assert decision == (len(probabilities), None)
    return after


@given(labels)
def test_spikes_are_where_ctc_begins_a_token(sequence: list[int]) -> None:
    _, state = step(sure(sequence))
    begins = [n for n, label in enumerate(sequence) if label and (n == 0 or label != sequence[n - 1])]
    assert state.spikes == CtcSpikes(tuple(begins), tuple(sequence[n] for n in begins))
    assert state.frames == len(sequence)
    assert state.label == (sequence[-1] if sequence else 0)
    assert state.last_speech == max((n for n, label in enumerate(sequence) if label), default=-1)


def test_a_held_token_spikes_once_and_a_blank_separates_two() -> None:
    assert step(sure([1, 1, 1]))[1].spikes.frames == (0,)
    assert step(sure([1, 0, 1]))[1].spikes.frames == (0, 2)
    assert step(sure([1, 2, 2, 1]))[1].spikes.tokens == (1, 2, 1)


def test_all_tokens_together_spike_at_the_lowest_probability() -> None:
    """The probability of all tokens counts, not that of the best; exactly the lowest is enough."""
    spread = np.log(np.array([[0.5, 0.2, 0.2, 0.1]]))
    assert step(spread, EndpointConfig(spike_probability=0.4999))[1].spikes == CtcSpikes((0,), (1,))
    assert step(spread, EndpointConfig(spike_probability=0.5001))[1].spikes.frames == ()
    half = np.log(np.array([[0.5, 0.25, 0.25]]))
    exact = float(-np.expm1(half[0, 0]))
    assert step(half, EndpointConfig(spike_probability=exact))[1].spikes.frames == (0,)


def test_a_blank_above_one_by_rounding_is_silence() -> None:
    assert step(np.array([[1e-7, -20.0, -20.0]], np.float32))[1].spikes.frames == ()


FAINT, CLEAR = 0.6, 0.9
MURMUR = EndpointConfig(onset_probability=0.8, pause_seconds=0.2, longest_seconds=0.8)  # 5 and 20 frames


def test_faint_spikes_count_once_a_clear_one_comes_before_a_pause() -> None:
    assert not listen([FAINT, 0, 0, FAINT], MURMUR).is_open
    assert listen([FAINT, 0, 0, 0, 0, CLEAR], MURMUR).spikes.frames == (0, 5)
    assert listen([FAINT, 0, 0, 0, 0, 0, CLEAR], MURMUR).spikes.frames == (6,)
    assert listen([FAINT, 0, 0, 0, FAINT, 0, 0, 0, CLEAR], MURMUR).spikes.frames == (0, 4, 8)
    murmured = listen([FAINT] * 40, MURMUR)
    assert not murmured.is_open
    assert murmured.spikes.frames == tuple(range(19, 40))  # older ones are dropped


@given(st.lists(st.sampled_from([0.0, 0.45, FAINT, CLEAR]), max_size=40), st.data())
def test_a_state_does_not_depend_on_the_cutting(probabilities: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(probabilities)))
    never = replace(NEVER, onset_probability=0.8, spike_probability=0.4)
    whole = listen(probabilities, never)
    by_parts = listen(probabilities[cut:], never, listen(probabilities[:cut], never))
    assert by_parts == whole
    assert whole.is_open == (CLEAR in probabilities)


CONFIG = EndpointConfig(pause_seconds=1.2, longest_seconds=4.0, silence_seconds=1e4)


def spoken(frames: int, last: int) -> EndpointState:
    """A stream whose utterance spiked at frame 3; its last frame with speech was `last`."""
    return EndpointState(frames, spikes=CtcSpikes((3,), (1,)), last_speech=last, is_open=True)


@pytest.mark.parametrize(("frames", "last", "ends"), [
    (34, 3, "pause"), (33, 3, None),         # 30 frames of silence after frame 3
    (90, 60, None), (91, 60, "pause"),
    (99, 90, None), (100, 94, "length"),     # after the longest, 5 frames of silence are enough
    (100, 95, None), (101, 95, "length"),
    (199, 197, None), (200, 198, "length"),  # after twice as long, none are needed
])  # fmt: skip
def test_an_utterance_ends(frames: int, last: int, ends: str | None) -> None:
    decision, _ = step(sure([0]), CONFIG, spoken(frames - 1, last))
    assert decision == (1, ends)


@pytest.mark.parametrize(("frames", "last", "end"), [
    (34, 3, 19),     # 15 of 30 frames of silence
    (100, 94, 98),   # 2 of 5
    (200, 199, 200),
])  # fmt: skip
def test_the_silence_at_the_end_is_shared(frames: int, last: int, end: int) -> None:
    assert Endpointer(CONFIG).end_frame(spoken(frames, last)) == end


@pytest.mark.parametrize(("lead_seconds", "left"), [(0.2, 5), (0.0, 0)])
def test_the_next_utterance_takes_no_more_silence_than_its_lead(
    lead_seconds: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headsync.endpointing.endpointer.LEAD_SECONDS", lead_seconds)
    assert Endpointer(CONFIG).end_frame(spoken(34, 3)) == 34 - left


def test_a_step_stops_at_an_endpoint_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    script = sure([0] * 5 + [1] + [0] * 36 + [2])
    decision, closed = step(script, CONFIG)
    assert decision == (36, "pause")
    endpointer = Endpointer(CONFIG)
    end = endpointer.end_frame(closed)
    after = endpointer.next_utterance(closed, end)
    assert (end, after.start, after.idle_from, after.is_open, after.spikes.frames) == (21, 21, 36, False, ())
    decision, opened = step(script[36:], CONFIG, after)
    assert decision == (7, None)
    assert opened.spikes.frames == (42,)
    assert endpointer.first_frame(opened) == 21  # a lead of 25 frames would reach into the utterance before
    monkeypatch.setattr("headsync.endpointing.endpointer.LEAD_SECONDS", 0.4)
    assert endpointer.first_frame(opened) == 32


def test_a_token_that_is_cut_through_does_not_spike_again() -> None:
    short = EndpointConfig(pause_seconds=0.4, longest_seconds=0.4)  # 10 frames, so 20 at the most
    decision, closed = step(sure([1] * 30), short)
    assert decision == (20, "length")
    endpointer = Endpointer(short)
    after = endpointer.next_utterance(closed, endpointer.end_frame(closed))
    assert step(sure([1] * 10), short, after)[1].spikes.frames == ()
    assert step(sure([1] * 5 + [0] + [1]), short, after)[1].spikes.frames == (26,)


def test_silence_is_reported_once_and_counted_from_the_last_utterance() -> None:
    config = EndpointConfig(pause_seconds=0.4, silence_seconds=2.0)  # 10 and 50 frames
    endpointer, state, found, log_ctc = Endpointer(config), STREAM_START, [], sure([0] * 120 + [1] + [0] * 120)
    while state.frames < len(log_ctc):
        rest = log_ctc[state.frames :]
        decision, state = endpointer.step(rest, state)
        if decision.endpoint:
            found.append((state.frames, decision.endpoint))
        if decision.endpoint == "pause":
            state = endpointer.next_utterance(state, endpointer.end_frame(state))
    assert found == [(50, "silence"), (131, "pause"), (181, "silence")]


def test_invalid_settings_are_refused() -> None:
    for wrong in (
        {"onset_probability": 1.5}, {"spike_probability": 1.5},
        {"pause_seconds": 0.0}, {"silence_seconds": -1.0}, {"longest_seconds": 1.0},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            EndpointConfig(**wrong)
