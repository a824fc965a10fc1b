"""Features: the stream equals the whole bit for bit, and the whole equals the definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from headsync.config import Config, FeaturesConfig
from headsync.errors import ModelError
from headsync.frontend import features
from headsync.frontend.audio import SAMPLE_RATE, FloatArray
from headsync.frontend.features import FRAME_SAMPLES, HOP_SAMPLES, NUM_MEL, Features, Statistics, log_mel, normalise
from headsync.frontend.pitch import Pitch


def speech_like(length: int, seed: int = 0) -> FloatArray:
    generator = np.random.default_rng(seed)
    tone = np.sin(2 * np.pi * 300 * np.arange(length) / SAMPLE_RATE) * 0.2
    return (tone + generator.normal(0, 0.02, length)).astype(np.float32)


def literal_log_mel(samples: FloatArray) -> np.ndarray:
    """Kaldi's filter bank, written out: one frame after the other, in double precision."""
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1))) ** 0.85
    mel = lambda hertz: 1127 * np.log(1 + hertz / 700)  # noqa: E731
    edges = np.linspace(mel(20), mel(8000), NUM_MEL + 2)
    bins = mel(np.arange(257) * SAMPLE_RATE / 512)
    frames = []
    for begin in range(0, len(samples) - FRAME_SAMPLES + 1, HOP_SAMPLES):
        frame = samples[begin : begin + FRAME_SAMPLES].astype(np.float64) * 32768
        frame = frame - frame.mean()
        frame = frame - 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * window, 512)) ** 2
        energies = []
        for left, centre, right in zip(edges, edges[1:], edges[2:], strict=False):
            rise, fall = (bins - left) / (centre - left), (right - bins) / (right - centre)
            energies.append(np.sum(power[:256] * np.clip(np.minimum(rise, fall), 0, None)[:256]))
        frames.append(np.log(np.maximum(energies, np.finfo(np.float32).eps)))
    return np.array(frames)


def test_the_frames_are_kaldis_filter_bank() -> None:
    samples = speech_like(4_000)
    # float32 inside the extractor: a few thousandths where a band is nearly empty
    np.testing.assert_allclose(log_mel(samples), literal_log_mel(samples), atol=5e-3)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 6_000), places=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_cutting_gives_the_same_bits(length: int, places: list[int]) -> None:
    samples = speech_like(length)
    pieces, rest = [np.zeros((0, NUM_MEL), np.float32)], features.start()
    for piece in np.split(samples, sorted(place % (length + 1) for place in places)):
        frames, rest = features.step(piece, rest)
        pieces.append(frames)
        assert len(rest) < FRAME_SAMPLES
    np.testing.assert_array_equal(np.concatenate(pieces), log_mel(samples))


def test_one_sample_at_a_time_gives_the_same_bits() -> None:
    samples = speech_like(1_200)
    pieces, rest = [], features.start()
    for sample in samples:
        frames, rest = features.step(np.array([sample]), rest)
        pieces.append(frames)
    np.testing.assert_array_equal(np.concatenate(pieces), log_mel(samples))


def test_a_long_recording_in_pieces_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = speech_like(20_000)
    whole = log_mel(samples)
    monkeypatch.setattr(features, "_PIECE_SAMPLES", 777)
    np.testing.assert_array_equal(log_mel(samples), whole)


@pytest.mark.parametrize(("length", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2), (16_000, 98)])
def test_a_frame_exists_once_all_its_samples_do(length: int, frames: int) -> None:
    assert log_mel(speech_like(length)).shape == (frames, NUM_MEL)


def test_a_step_does_not_change_its_input_state() -> None:
    rest = speech_like(300)
    before = rest.copy()
    features.step(speech_like(500, 1), rest)
    np.testing.assert_array_equal(rest, before)


def test_digital_silence_is_finite() -> None:
    assert np.isfinite(log_mel(np.zeros(1_600, np.float32))).all()


# --- statistics ---


def test_statistics_over_utterances_are_those_of_all_frames() -> None:
    utterances = [log_mel(speech_like(4_000, seed)) for seed in range(3)]
    frames = np.concatenate(utterances).astype(np.float64)
    statistics = Statistics.of(iter(utterances))
    np.testing.assert_allclose(statistics.mean, frames.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.deviation, frames.std(axis=0), rtol=1e-4)


def test_normalised_frames_have_zero_mean_and_unit_deviation() -> None:
    frames = log_mel(speech_like(16_000))
    normal = normalise(frames, Statistics.of([frames]))
    assert normal.dtype == np.float32
    np.testing.assert_allclose(normal.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(normal.std(axis=0), 1, atol=1e-3)


def test_a_band_that_never_varies_does_not_divide_by_zero() -> None:
    frames = np.full((10, NUM_MEL), 3.0, np.float32)
    assert np.isfinite(normalise(frames, Statistics.of([frames]))).all()
    assert np.isfinite(Statistics.of([]).deviation).all()


def test_saved_statistics_load_unchanged(tmp_path: Path) -> None:
    statistics = Statistics.of([log_mel(speech_like(4_000))])
    statistics.save(tmp_path / "statistics.safetensors")
    loaded = Statistics.load(tmp_path / "statistics.safetensors")
    np.testing.assert_array_equal(loaded.mean, statistics.mean)
    np.testing.assert_array_equal(loaded.deviation, statistics.deviation)


GOOD = np.ones(NUM_MEL, np.float32)


@pytest.mark.parametrize(
    "arrays",
    [
        {"mean": GOOD},
        {"mean": GOOD, "deviation": GOOD[:40]},
        {"mean": GOOD * np.float32(np.nan), "deviation": GOOD},
        {"mean": GOOD, "deviation": GOOD * 0},
        {"mean": GOOD.astype(np.float64), "deviation": GOOD},
    ],
)
def test_statistics_that_do_not_fit_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file(arrays, tmp_path / "statistics.safetensors")
    with pytest.raises(ModelError, match="80 numbers"):
        Statistics.load(tmp_path / "statistics.safetensors")


def test_damaged_or_missing_statistics_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "statistics.safetensors"
    with pytest.raises(ModelError, match="cannot be read"):
        Statistics.load(path)
    Statistics(GOOD, GOOD).save(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ModelError, match="cannot be read"):
        Statistics.load(path)


# --- pitch beside the energies ---

HEARS_PITCH = Features.of(FeaturesConfig(pitch=True))


def test_pitch_is_three_more_columns_and_changes_no_energy() -> None:
    samples = speech_like(9_000)
    rows = HEARS_PITCH.whole(samples)
    assert rows.shape == (len(log_mel(samples)), Config(features=FeaturesConfig(pitch=True)).columns) == (54, 83)
    np.testing.assert_array_equal(rows[:, :NUM_MEL], log_mel(samples))
    np.testing.assert_array_equal(rows[:, NUM_MEL:], Pitch().whole(samples))
    np.testing.assert_array_equal(Features.of(FeaturesConfig()).whole(samples), log_mel(samples))


@settings(max_examples=15, deadline=None)
@given(length=st.integers(0, 9_000), places=st.lists(st.integers(0, 10_000), max_size=8))
def test_any_cutting_gives_the_same_bits_with_pitch(length: int, places: list[int]) -> None:
    samples = speech_like(length)
    pieces, state = [np.zeros((0, 83), np.float32)], HEARS_PITCH.start()
    for piece in np.split(samples, sorted(place % (length + 1) for place in places)):
        rows, state = HEARS_PITCH.step(piece, state)
        pieces.append(rows)
    pieces.append(HEARS_PITCH.step(samples[:0], state, final=True)[0])
    np.testing.assert_array_equal(np.concatenate(pieces), HEARS_PITCH.whole(samples))


def test_a_row_is_emitted_exactly_after_the_delay() -> None:
    samples, row = speech_like(12_000), 20
    needed = row * HOP_SAMPLES + FRAME_SAMPLES + HEARS_PITCH.delay_samples
    for count, rows in ((needed - 1, row), (needed, row + 1)):
        assert len(HEARS_PITCH.step(samples[:count], HEARS_PITCH.start())[0]) == rows


def test_statistics_with_pitch_have_83_columns(tmp_path: Path) -> None:
    statistics = Statistics.of([HEARS_PITCH.whole(speech_like(9_000, seed)) for seed in range(2)])
    statistics.save(tmp_path / "statistics.safetensors")
    np.testing.assert_array_equal(Statistics.load(tmp_path / "statistics.safetensors", 83), statistics)
    with pytest.raises(ModelError, match="80 numbers"):
        Statistics.load(tmp_path / "statistics.safetensors")
