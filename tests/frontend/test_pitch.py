"""Pitch: the same as literal loops, for any cutting, and right about tones, glides, noise and speech."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.frontend import pitch
from headsync.frontend.features import log_mel
from headsync.frontend.pitch import NUM_PITCH, Buffers, Pitch, Track, _transit
from headsync.frontend.pitch_correlation import LAGS_S, SlowAudio, correlate, interpolate
from reference.pitch import features

RATE = 16_000
SHORT = Pitch(decision_frames=6, left_frames=20, right_frames=3)
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]


def harmonic(hertz: npt.ArrayLike, seconds: float, amplitude: float = 0.1) -> Floats:
    """A voice: ten harmonics of a pitch that may glide."""
    count = round(seconds * RATE)
    turns = np.cumsum(np.broadcast_to(hertz, count)) / RATE
    return (amplitude * sum(np.sin(2 * np.pi * n * turns) / n for n in range(1, 11))).astype(np.float32)


def noise(seconds: float, amplitude: float = 0.05, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0, amplitude, round(seconds * RATE)).astype(np.float32)


def mixture(seconds: float = 0.6, seed: int = 0) -> Floats:
    """Noise, a glide in noise, silence, noise."""
    third = seconds / 3
    glide = harmonic(np.linspace(120, 170, round(third * RATE)), third) + noise(third, 0.01, seed)
    quiet = np.zeros(round(third * RATE / 2), np.float32)
    return np.concatenate([noise(third, 0.02, seed + 1), glide, quiet, noise(third / 2, 0.03, seed + 2)])


# --- literal loops, with the published numbers ---


def sinc_window(t: float, cutoff: float, zeros: int) -> float:
    if abs(t) >= zeros / (2 * cutoff):
        return 0.0
    hann = 0.5 * (1 + math.cos(2 * math.pi * cutoff / zeros * t))
    return hann * (2 * cutoff if t == 0 else math.sin(2 * math.pi * cutoff * t) / (math.pi * t))


def slow(samples: Floats) -> Doubles:
    """At 4 kHz: each sample is a sum of those within half a millisecond."""
    found = []
    for n in range(-(-len(samples) // 4)):
        near = range(max(0, 4 * n - 8), min(len(samples), 4 * n + 9))
        found.append(sum(sinc_window((4 * n - m) / RATE, 1000, 1) / RATE * float(samples[m]) for m in near))
    return np.array(found)


def grid() -> list[float]:
    lags = [1 / 400]
    while lags[-1] * 1.005 <= 1 / 50:
        lags.append(lags[-1] * 1.005)
    return lags


def correlations(samples: Floats, frame: int) -> tuple[dict[int, float], dict[int, float]]:
    """Of one frame, at every whole lag: with ballast and without."""
    sound = slow(samples)
    audio = sound[: 40 * frame + 182]
    around = np.concatenate([sound, np.zeros(182)])[40 * frame : 40 * frame + 182]
    around = around - around[:100].mean()
    ballast = 7000 * (float(audio.var()) * 100) ** 2
    floor = (100 * 2.0**-32) ** 2
    for_path, for_voicing = {}, {}
    for lag in range(8, 83):
        product = sum(around[n] * around[n + lag] for n in range(100))
        energy = sum(around[:100] ** 2) * sum(around[lag : lag + 100] ** 2) + floor
        for_path[lag] = product / math.sqrt(energy + ballast)
        for_voicing[lag] = product / math.sqrt(energy)
    return for_path, for_voicing


def between(found: dict[int, float], seconds: float) -> float:
    return sum(value * sinc_window(seconds - lag / 4000, 2000, 5) / 4000 for lag, value in found.items())


def test_lags_and_interpolation_are_the_published_ones() -> None:
    lags = grid()
    assert len(lags) == len(LAGS_S)
    np.testing.assert_allclose(LAGS_S, lags, rtol=1e-12)
    random = np.random.default_rng(0).normal(size=75)
    found = interpolate(random[None])[0]
    literal = [between({lag: random[lag - 8] for lag in range(8, 83)}, seconds) for seconds in lags]
    np.testing.assert_allclose(found, literal, rtol=0, atol=1e-5)  # in float32, as is the search that it is for


@pytest.mark.parametrize("frame", [0, 7, 15, 17])
def test_correlations_are_those_of_a_literal_loop(frame: int) -> None:
    """The last two frames look beyond the end."""
    samples = np.concatenate([harmonic(140, 0.1), noise(0.1)])
    assert len(log_mel(samples)) == 18
    audio = SlowAudio.start().push(samples, final=True)
    np.testing.assert_allclose(audio.audio, slow(samples), rtol=0, atol=1e-12)
    found = correlate(audio, frame, 1)
    for got, literal in zip(found, correlations(samples, frame), strict=True):
        np.testing.assert_allclose(got[0], list(literal.values()), rtol=0, atol=1e-9)


def local_costs(samples: Floats) -> Doubles:
    audio = SlowAudio.start().push(samples, final=True)
    for_path_FL, _ = correlate(audio, 0, len(log_mel(samples)))
    correlation_FS = interpolate(for_path_FL)
    return np.asarray(1 - correlation_FS + 10 * LAGS_S * correlation_FS)


def jump_cost(difference: npt.ArrayLike) -> Doubles:
    return np.asarray(0.1 * math.log(1.005) ** 2 * np.square(difference), dtype=np.float64)


def path_of(samples: Floats, tracker: Pitch) -> list[int]:
    lags = 1 / tracker.track(samples).hertz
    return [int(np.abs(LAGS_S - lag).argmin()) for lag in lags]


def viterbi(costs_FS: Doubles) -> tuple[list[Doubles], list[npt.NDArray[np.intp]]]:
    """All states before all states: forward costs and back pointers."""
    states = np.arange(costs_FS.shape[1])
    forward, back, totals = np.zeros(len(states)), [], []
    for costs in costs_FS:
        reached = [forward + jump_cost(states - state) for state in states]
        back.append(np.array([row.argmin() for row in reached]))
        forward = np.array([row.min() for row in reached]) + costs
        totals.append(forward)
    return totals, back


def test_the_path_is_the_best_of_all_paths() -> None:
    samples = mixture()
    costs_FS = local_costs(samples)
    path = path_of(samples, Pitch(decision_frames=10_000))
    spent = sum(costs_FS[n, state] for n, state in enumerate(path)) + jump_cost(np.diff(path)).sum()
    assert spent == pytest.approx(viterbi(costs_FS)[0][-1].min(), abs=1e-4)  # costs are carried in single precision


@pytest.mark.parametrize("decision_frames", [0, 3, 10])
def test_a_frame_is_decided_after_the_decision_delay(decision_frames: int) -> None:
    samples = mixture()
    totals, back = viterbi(local_costs(samples))
    literal = []
    for frame in range(len(totals)):
        last = min(frame + decision_frames, len(totals) - 1)
        state = int(totals[last].argmin())
        for later in range(last, frame, -1):
            state = int(back[later][state])
        literal.append(state)
    path = path_of(samples, Pitch(decision_frames=decision_frames))
    assert np.mean(np.abs(np.subtract(path, literal)) <= 1) > 0.98  # but for ties in single precision
    assert path != path_of(samples, Pitch(decision_frames=10_000))  # the delay makes a difference here


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.05), st.integers(1, 60))
def test_the_pruned_search_finds_the_best_predecessor(seed: int, roughness: float, smooth: int) -> None:
    generator = np.random.default_rng(seed)
    rough = np.convolve(generator.normal(0, roughness, 417 + smooth - 1), np.ones(smooth), "valid")
    costs = (rough - rough.min()).astype(np.float32)
    states = np.arange(417)
    everything = costs + jump_cost(states[:, None] - states).astype(np.float32)
    before, reached = _transit(costs, Buffers.make())
    np.testing.assert_array_equal(reached, everything.min(axis=1))
    np.testing.assert_array_equal(everything[states, before], everything.min(axis=1))


def test_features_are_those_of_a_literal_loop() -> None:
    samples = mixture()
    track, rows = SHORT.track(samples), SHORT.whole(samples)
    count = len(track.log_pitch)
    for frame in range(count):
        near = range(max(0, frame - 20), min(count, frame + 4))
        mean = sum(track.voicing[n] * track.log_pitch[n] for n in near) / sum(track.voicing[n] for n in near)
        at = [track.log_pitch[min(max(frame + n, 0), count - 1)] for n in range(-2, 3)]
        slope = sum(n * value for n, value in zip(range(-2, 3), at, strict=True)) / 10
        voiced = (1.0001 - min(1.0, max(-1.0, track.correlation[frame]))) ** 0.15 - 1
        literal = [2 * voiced, 2 * (track.log_pitch[frame] - mean), 10 * slope]
        np.testing.assert_allclose(rows[frame], literal, rtol=0, atol=1e-6)


def difference_from_kaldi(tracker: Pitch, samples: Floats) -> tuple[Doubles, float]:
    """In voiced frames: the mean differences in deviations of Kaldi's features, and the share with the same pitch."""
    rows = tracker.whole(samples)
    kaldi = features(SlowAudio.start().push(samples, final=True).audio, len(rows))
    voiced = kaldi[:, 0] < 2 * (0.2001**0.15 - 1)  # a correlation of more than 0.8
    apart = np.abs(rows - kaldi)[voiced]
    return apart.mean(0) / kaldi[voiced].std(0), float(np.mean(apart[:, 0] < 1e-5))


WHOLE = Pitch(decision_frames=10**6, left_frames=75, right_frames=75)  # all but the energy of the whole utterance


def test_in_voiced_frames_the_difference_from_kaldis_features_is_that_of_the_mean() -> None:
    """The same pitch and voicing; with its mean of 75 frames to both sides, the same features."""
    streamed, same = difference_from_kaldi(Pitch(), mixture(3.0))
    assert same > 0.98
    assert 0.5 < streamed[1] < 1.5
    whole, same = difference_from_kaldi(WHOLE, mixture(3.0))
    assert same > 0.98
    assert (whole < [0.02, 0.03, 0.1]).all()


def test_real_speech_differs_from_kaldis_features_by_known_amounts(shared_data: Path) -> None:
    files = sorted((shared_data / "LibriSpeech").rglob("*.flac"))[::45]
    if not files:
        pytest.skip(f"needs LibriSpeech in {shared_data}")
    speech = [soundfile.read(path, dtype="float32")[0][: 4 * RATE] for path in files]
    for tracker, most in ((Pitch(), [0.1, 0.8, 0.5]), (WHOLE, [0.05, 0.2, 0.3])):
        found = [difference_from_kaldi(tracker, samples) for samples in speech]
        assert np.mean([same for _, same in found]) > 0.75
        assert (np.mean([apart for apart, _ in found], axis=0) < most).all()


def test_voicing_is_the_published_function_of_correlation() -> None:
    found = Track(np.zeros(4), np.array([0.0, 0.5, -0.5, 1.3])).voicing
    at_half = -5.2 + 5.4 * math.exp(-3.75) + 2.4 - 2 * math.exp(-5) + 4.2 * math.exp(-10)
    at_one = -5.2 + 5.4 + 4.8 - 2 * math.exp(-10) + 4.2
    logits = [-5.2 + 5.4 * math.exp(-7.5) - 2 + 4.2 * math.exp(-20), at_half, at_half, at_one]
    np.testing.assert_allclose(found, [1 / (1 + math.exp(-value)) for value in logits], rtol=1e-12)


# --- streaming ---


def streamed(samples: Floats, cuts: list[int], tracker: Pitch = SHORT) -> list[Floats]:
    """The rows after every piece; the end is a separate call."""
    rows, state = [], tracker.start()
    for piece in np.split(samples, sorted(cuts)):
        new, state = tracker.step(piece, state)
        rows.append(new)
    return [*rows, tracker.step(samples[:0], state, final=True)[0]]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9_000), st.lists(st.integers(0, 9_000), max_size=12), st.integers(0, 9))
def test_any_cutting_gives_the_same_bits(count: int, cuts: list[int], seed: int) -> None:
    samples = mixture(seed=seed)[:count]
    rows = np.concatenate(streamed(samples, [cut for cut in cuts if cut <= count]))
    np.testing.assert_array_equal(rows, SHORT.whole(samples))


def test_sample_by_sample_and_all_but_the_end_give_the_same_bits() -> None:
    samples = mixture()[4_000:6_500]
    whole = Pitch().whole(samples)
    np.testing.assert_array_equal(np.concatenate(streamed(samples, list(range(1, 2_500)), Pitch())), whole)
    rows, state = Pitch().step(samples[:-1], Pitch().start())
    last, _ = Pitch().step(samples[-1:], state, final=True)
    np.testing.assert_array_equal(np.concatenate([rows, last]), whole)


def test_a_long_recording_is_worked_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = mixture()
    whole, track = SHORT.whole(samples), SHORT.track(samples)
    monkeypatch.setattr(pitch, "_PIECE_SAMPLES", 1_000)
    np.testing.assert_array_equal(SHORT.whole(samples), whole)
    np.testing.assert_array_equal(SHORT.track(samples).log_pitch, track.log_pitch)


@pytest.mark.parametrize("count", [0, 1, 399, 400, 401, 559, 560, 731, 732, 1_000, 5_000])
def test_there_are_as_many_rows_as_frames_of_energies(count: int) -> None:
    rows = Pitch().whole(noise(0.5)[:count])
    assert rows.shape == (len(log_mel(noise(0.5)[:count])), NUM_PITCH)
    assert rows.dtype == np.float32


def test_a_row_waits_no_longer_than_the_declared_delay() -> None:
    """A frame needs 25 ms and the longest lag, with the filter's half millisecond; then the frames of the delay."""
    samples = mixture()
    state, given_out = SHORT.start(), 0
    for count in range(160, len(samples), 160):
        rows, state = SHORT.step(samples[count - 160 : count], state)
        given_out += len(rows)
        assert given_out == max(0, 1 + (count - 7 - 4 * 182 + 3) // 160 - SHORT.delay_frames)
    assert SHORT.delay_frames == 6 + 3


def test_a_state_is_a_value() -> None:
    samples = mixture()
    _, state = SHORT.step(samples[:5_000], SHORT.start())
    moved = pickle.loads(pickle.dumps(state))
    first = SHORT.step(samples[5_000:], state, final=True)[0]
    np.testing.assert_array_equal(SHORT.step(samples[5_000:], state, final=True)[0], first)
    np.testing.assert_array_equal(SHORT.step(samples[5_000:], moved, final=True)[0], first)


def test_a_state_does_not_grow() -> None:
    samples, state, sizes = mixture(), SHORT.start(), []
    for _ in range(6):
        _, state = SHORT.step(samples, state)
        sizes.append(len(pickle.dumps(state)))
    assert max(sizes[1:]) - min(sizes[1:]) < 4_000
    assert np.abs(state.search.costs_S).max() < 3  # nor do its numbers


def test_another_stream_may_begin_after_the_end() -> None:
    samples = mixture()
    _, state = SHORT.step(samples, SHORT.start(), final=True)
    np.testing.assert_array_equal(SHORT.step(samples, state, final=True)[0], SHORT.whole(samples))


# --- results ---


@pytest.mark.parametrize("hertz", [60.0, 100.0, 155.5, 250.0, 380.0])
def test_the_pitch_of_a_tone_is_right(hertz: float) -> None:
    track = Pitch().track(harmonic(hertz, 0.5))
    np.testing.assert_allclose(track.hertz[5:-5], hertz, rtol=0.01)
    assert (track.voicing[:-3] > 0.9).all()


def test_a_glide_is_followed() -> None:
    """The correlation is of two stretches one lag apart, so that the pitch is that of half a lag later."""
    hertz = np.linspace(100, 250, RATE)
    track = Pitch().track(harmonic(hertz, 1.0))
    at = (160 * np.arange(len(track.hertz)) + 200 + RATE / track.hertz / 2).astype(int)
    error = track.hertz[5:-5] / hertz[np.minimum(at[5:-5], RATE - 1)] - 1
    assert np.abs(error).max() < 0.02
    rows = Pitch().whole(harmonic(hertz, 1.0))
    assert (rows[10:-10, 2] > 0).mean() > 0.95  # the slope rises
    falling = Pitch().whole(harmonic(hertz[::-1], 1.0))
    assert (falling[10:-10, 2] < 0).mean() > 0.95


@pytest.mark.parametrize("samples", [noise(1.0), np.zeros(RATE, np.float32), np.full(RATE, 0.25, np.float32)],
                         ids=["noise", "silence", "offset"])  # fmt: skip
def test_noise_silence_and_an_offset_are_not_voiced(samples: Floats) -> None:
    """Except for the start of the noise, where the mean energy covers few samples."""
    track = Pitch().track(samples)
    assert np.mean(track.voicing[10:-4] > 0.5) < 0.05
    assert np.isfinite(Pitch().whole(samples)).all()


def test_a_voice_in_silence_has_the_same_features_at_any_level() -> None:
    loud = np.concatenate([noise(0.2, 0.01), harmonic(150, 0.4), noise(0.2, 0.01)])
    np.testing.assert_allclose(Pitch().whole(loud / 8), Pitch().whole(loud), atol=1e-3)


def test_pitch_continues_through_a_pause() -> None:
    """Where nothing is voiced the path runs from the pitch before to the pitch after, and never far outside."""
    samples = np.concatenate([harmonic(120, 0.4), noise(0.3, 0.002), harmonic(150, 0.4)])
    found = Pitch(decision_frames=60).track(samples).hertz
    assert found[45:65].min() > 100
    assert found[45:65].max() < 180


def yin(samples: Floats, at: int, window: int = 640) -> tuple[float, float]:
    """An independent tracker: cumulative mean normalised differences around a sample, hertz and aperiodicity."""
    around = samples[at - window : at + window].astype(np.float64)
    still = around[: 2 * window - 320]
    difference = np.array([np.square(still - around[lag : lag + len(still)]).sum() for lag in range(1, 321)])
    normal = difference * np.arange(1, 321) / np.maximum(np.cumsum(difference), 1e-12)
    low = np.flatnonzero(normal[40:] < 0.15)
    lag = 40 + (int(low[0]) if len(low) else int(normal[40:].argmin()))
    while lag + 1 < 319 and normal[lag + 1] < normal[lag]:
        lag += 1
    lag = min(lag, 318)
    before, here, after = normal[lag - 1 : lag + 2]
    curve = before - 2 * here + after
    return RATE / (lag + 1 + (0.5 * (before - after) / curve if curve > 0 else 0.0)), float(here)


def test_real_speech_agrees_with_another_tracker(shared_data: Path) -> None:
    files = sorted((shared_data / "LibriSpeech").rglob("*.flac"))[::12]
    if not files:
        pytest.skip(f"needs LibriSpeech in {shared_data}")
    errors = []
    for path in files:
        samples = soundfile.read(path, dtype="float32")[0][: 5 * RATE]
        track = Pitch().track(samples)
        for frame in np.flatnonzero(track.voicing > 0.5)[::3]:
            middle = round(160 * frame + 200 + RATE / track.hertz[frame] / 2)
            if 640 <= middle <= len(samples) - 640:
                hertz, aperiodic = yin(samples, middle)
                errors += [abs(track.hertz[frame] / hertz - 1)] if aperiodic < 0.15 else []
    assert len(errors) > 200
    assert np.median(errors) < 0.02
    assert np.mean(np.array(errors) > 0.2) < 0.05
