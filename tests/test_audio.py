"""Sound in: reading, mixing down and resampling, with all that can be wrong with a file or an array."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from headsync.audio import SAMPLE_RATE, FloatArray, Resampler, mix_down, read_audio, resample, stream_audio
from headsync.errors import AudioError


def noise(length: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, length).astype(np.float32)


def wav_bytes(samples: FloatArray, rate: int = SAMPLE_RATE, form: str = "WAV", subtype: str = "PCM_16") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def cut(samples: FloatArray, places: list[int]) -> list[FloatArray]:
    return np.split(samples, sorted(place % (len(samples) + 1) for place in places))


# --- files ---


@pytest.mark.parametrize("form", ["WAV", "FLAC", "AIFF"])
def test_a_file_keeps_its_samples_channels_and_rate(tmp_path: Path, form: str) -> None:
    samples = np.stack([noise(4410), noise(4410, 1)], axis=1)
    path = tmp_path / "sound"
    path.write_bytes(wav_bytes(samples, 44_100, form))
    read, rate = read_audio(path)
    assert rate == 44_100
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, samples, atol=1 / 32768)


@pytest.mark.parametrize(("form", "subtype"), [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")])
def test_compressed_files_are_read(tmp_path: Path, form: str, subtype: str) -> None:
    path = tmp_path / "sound"
    path.write_bytes(wav_bytes(noise(16_000), SAMPLE_RATE, form, subtype))
    samples, rate = read_audio(path)
    assert rate == SAMPLE_RATE
    assert samples.shape[1] == 1
    assert abs(len(samples) - 16_000) < 2_000


@pytest.mark.parametrize("piece_seconds", [0.00001, 0.0137, 0.1, 5.0])
def test_pieces_of_any_length_are_the_whole_file(tmp_path: Path, piece_seconds: float) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(wav_bytes(noise(3_001)))
    pieces = list(stream_audio(path, piece_seconds))
    np.testing.assert_array_equal(np.concatenate([samples for samples, _ in pieces]), read_audio(path)[0])
    assert max(len(samples) for samples, _ in pieces) <= max(1, round(piece_seconds * SAMPLE_RATE))


def test_a_wav_written_to_a_pipe_is_read_although_its_length_is_unknown(tmp_path: Path) -> None:
    content = bytearray(wav_bytes(noise(1_600)))
    place = content.index(b"data") + 4
    for unknown in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"):
        content[4:8] = content[place : place + 4] = unknown
        path = tmp_path / "pipe.wav"
        path.write_bytes(content)
        assert len(read_audio(path)[0]) == 1_600


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


OPUS = wav_bytes(noise(64_000), form="OGG", subtype="OPUS")

BAD_FILES = {
    "empty": (b"", "is empty"),
    "text": (b"seven three one\n" * 100, "cannot be read as sound"),
    "noise": (np.random.default_rng(0).bytes(5_000), "cannot be read as sound"),
    "header only": (wav_bytes(noise(0)), "no samples"),
    "half a header": (wav_bytes(noise(100))[:20], "cannot be read as sound"),
    "truncated wav": (half(wav_bytes(noise(16_000))), "truncated"),
    "truncated flac": (half(wav_bytes(noise(16_000), form="FLAC")), "truncated"),
    "truncated aiff": (half(wav_bytes(noise(16_000), form="AIFF")), "truncated"),
    "truncated w64": (half(wav_bytes(noise(16_000), form="W64")), "truncated"),
    "truncated opus": (half(OPUS), "truncated"),
    "opus without its last page": (OPUS[: OPUS.rfind(b"OggS")], "truncated"),
    "opus without its last bytes": (OPUS[:-10], "truncated"),
    "truncated vorbis": (half(wav_bytes(noise(64_000), form="OGG", subtype="VORBIS")), "truncated"),
    "truncated mp3": (half(wav_bytes(noise(64_000), form="MP3", subtype="MPEG_LAYER_III")), "truncated"),
    "not a number": (wav_bytes(np.array([0.1, np.nan, 0.2], np.float32), subtype="FLOAT"), "not numbers"),
    "infinite": (wav_bytes(np.array([0.1, np.inf, 0.2], np.float32), subtype="FLOAT"), "not numbers"),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("reader", [read_audio, lambda path: list(stream_audio(path))])
def test_a_bad_file_is_told_in_one_sentence(tmp_path: Path, name: str, reader) -> None:  # type: ignore[no-untyped-def]
    content, reason = BAD_FILES[name]
    path = tmp_path / "sound.wav"
    path.write_bytes(content)
    with pytest.raises(AudioError) as caught:
        reader(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "\n" not in message
    assert message.endswith(".")


def test_a_file_whose_rate_makes_no_sense_is_named(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "low.wav", noise(1000), 2000)
    with pytest.raises(AudioError, match=r"low\.wav: a sample rate of 2000 is not within 4000 to 192000"):
        read_audio(tmp_path / "low.wav")


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="no such file"):
        read_audio(tmp_path / "nowhere.wav")
    with pytest.raises(AudioError, match="is a folder"):
        read_audio(tmp_path)


# --- mixing down ---


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_integers_are_scaled_to_full_scale(kind: type) -> None:
    limits = np.iinfo(kind)
    np.testing.assert_allclose(mix_down(np.array([limits.min, 0, limits.max], kind)), [-1.0, 0.0, 1.0], atol=1e-4)


def test_channels_are_averaged() -> None:
    left, right = noise(100), noise(100, 1)
    np.testing.assert_allclose(mix_down(np.stack([left, right], axis=1)), (left + right) / 2, atol=1e-7)


def test_mono_passes_unchanged() -> None:
    samples = noise(100)
    np.testing.assert_array_equal(mix_down(samples), samples)
    np.testing.assert_array_equal(mix_down(samples[:, None]), samples)
    assert mix_down(samples.astype(np.float64)).dtype == np.float32
    assert mix_down(noise(0)).shape == (0,)


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (np.array([0.0, np.nan]), "not numbers"),
        (np.array([0.0, -np.inf]), "not numbers"),
        (np.array([0.0, 1e300]), "not numbers"),
        (np.array([0.0, -3e38]), "as large as 3e.38, which is no sound"),
        ([[0.0, 0.1], [0.2]], "not a table of numbers"),
        (np.float32(0.5), "not sound"),
        (np.zeros((2, 3, 4), np.float32), "not sound"),
        (np.zeros((2, 16_000), np.float32), r"pass \(samples, channels\)"),
        (np.zeros((100, 0), np.float32), "0 channels"),
        (np.zeros(10, np.uint8), "uint8"),
        (np.zeros(10, np.complex64), "complex64"),
        (["a", "b"], "not understood"),
    ],
)
def test_what_is_not_sound_is_refused(samples: object, reason: str) -> None:
    with pytest.raises(AudioError, match=reason):
        mix_down(samples)  # type: ignore[arg-type]


# --- resampling ---


@settings(max_examples=40, deadline=None)
@given(
    rate=st.sampled_from([4_000, 8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000]),
    places=st.lists(st.integers(0, 20_000), max_size=12),
    length=st.integers(0, 9_000),
)
def test_any_cutting_resamples_to_the_same_bits(rate: int, places: list[int], length: int) -> None:
    samples = noise(length)
    resampler = Resampler(rate)
    pieces = [resampler.push(piece) for piece in cut(samples, places)]
    np.testing.assert_array_equal(np.concatenate([*pieces, resampler.finish()]), resample(samples, rate))


@pytest.mark.parametrize("rate", [4_000, 8_000, 44_100, 48_000])
def test_a_tone_keeps_its_pitch_length_and_level(rate: int) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
    resampled = resample(tone, rate)
    assert abs(len(resampled) - SAMPLE_RATE) <= 1
    wanted = np.sin(2 * np.pi * 440 * np.arange(len(resampled)) / SAMPLE_RATE)
    np.testing.assert_allclose(resampled[2_000:-2_000], wanted[2_000:-2_000], atol=2e-3)


def test_16_khz_passes_through() -> None:
    samples = noise(1_000)
    np.testing.assert_array_equal(resample(samples, SAMPLE_RATE), samples)


def test_a_finished_resampler_starts_anew() -> None:
    samples, resampler = noise(5_000), Resampler(8_000)
    first = np.concatenate([resampler.push(samples), resampler.finish()])
    second = np.concatenate([resampler.push(samples), resampler.finish()])
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("rate", [0, -16_000, 3_999, 192_001, 16_000.5, "16000", None, True, float("nan")])
def test_a_rate_that_makes_no_sense_is_refused(rate: object) -> None:
    with pytest.raises(AudioError, match="sample rate"):
        Resampler(rate)  # type: ignore[arg-type]
