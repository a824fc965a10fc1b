"""Audio in: decoding, mixing down and resampling, and the errors for files and arrays that cannot be used."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from audio_files import CODECS, encode
from commands import environment
from headsync import Recognizer
from headsync.errors import AudioError
from headsync.frontend.audio import SAMPLE_RATE, FloatArray, Resampler, mix_down, read_audio, resample, stream_audio
from recordings import DIGIT_RECORDINGS

DEMO = sorted(DIGIT_RECORDINGS.glob("*.flac"))[0]


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return Recognizer.load("digits-en")


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


def speech(rate: int, channels: int) -> FloatArray:
    """One of the demo recordings at any rate; the channels differ."""
    samples, original = read_audio(DEMO)
    mono = soxr.resample(samples[:, 0], original, rate)
    return np.stack([mono, 0.5 * mono[::-1]], axis=1)[:, :channels]


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
@pytest.mark.parametrize("channels", [1, 2])
def test_any_cutting_of_any_format_gives_the_same_samples(
    tmp_path: Path, suffix: str, rate: int, channels: int
) -> None:
    original = speech(rate, channels)
    path = encode(tmp_path / f"a.{suffix}", original, rate)
    whole, found = read_audio(path)
    assert found == (48_000 if CODECS[suffix] == "libopus" else rate)
    assert whole.shape[1] == channels
    assert abs(len(whole) / found - len(original) / rate) < 2_500 / rate  # the padding of an encoder
    for piece_seconds in (0.0137, 0.1, 60.0):
        pieces = [samples for samples, _ in stream_audio(path, piece_seconds)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
        assert {len(piece) for piece in pieces[:-1]} <= {round(piece_seconds * found)}


@pytest.mark.parametrize("suffix", CODECS)
def test_any_cutting_of_any_format_gives_the_same_events(
    tmp_path: Path, suffix: str, recognizer: Recognizer, capfd: pytest.CaptureFixture[str]
) -> None:
    path = encode(tmp_path / f"a.{suffix}", speech(16_000, 1), 16_000)
    results = []
    for piece_seconds in (0.1, 60.0):
        session = recognizer.session()
        events = [event for samples, rate in stream_audio(path, piece_seconds) for event in session.push(samples, rate)]
        results.append(events + session.finish())
    assert results[0] == results[1]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("suffix", ["mp3", "ogg", "opus", "webm", "m4a"])
def test_compressed_audio_resembles_its_original(tmp_path: Path, suffix: str) -> None:
    time = np.arange(16_000) / 16_000
    tone = (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
    samples, rate = read_audio(encode(tmp_path / f"a.{suffix}", tone[:, None], 16_000))
    spectrum = np.abs(np.fft.rfft(samples[rate // 4 : 3 * rate // 4, 0]))
    assert np.argmax(spectrum) == 220  # half a second: bins of 2 Hz
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.05)


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
    "text": (b"seven three one\n" * 100, "cannot be decoded as audio"),
    "noise": (np.random.default_rng(0).bytes(5_000), "cannot be decoded as audio"),
    "header only": (wav_bytes(noise(0)), "no samples"),
    "half a header": (wav_bytes(noise(100))[:20], "cannot be decoded as audio"),
    "truncated wav": (half(wav_bytes(noise(16_000))), "truncated"),
    "truncated flac": (half(wav_bytes(noise(16_000), form="FLAC")), "truncated"),
    "truncated aiff": (half(wav_bytes(noise(16_000), form="AIFF")), "truncated"),
    "truncated w64": (half(wav_bytes(noise(16_000), form="W64")), "truncated"),
    "truncated opus": (half(OPUS), "truncated"),
    "opus without its last page": (OPUS[: OPUS.rfind(b"OggS")], "truncated"),
    "opus without its last bytes": (OPUS[:-10], "truncated"),
    "truncated vorbis": (half(wav_bytes(noise(64_000), form="OGG", subtype="VORBIS")), "truncated"),
    "truncated mp3": (half(wav_bytes(noise(64_000), form="MP3", subtype="MPEG_LAYER_III")), "truncated"),
    "not a number": (wav_bytes(np.array([0.1, np.nan, 0.2], np.float32), subtype="FLOAT"), "not finite"),
    "infinite": (wav_bytes(np.array([0.1, np.inf, 0.2], np.float32), subtype="FLOAT"), "not finite"),
    "unscaled": (wav_bytes(32_768 * noise(1_600), subtype="FLOAT"), "not scaled"),
    "80 channels": (wav_bytes(np.zeros((100, 80), np.float32)), "80 channels"),
    "playlist": (b"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n/etc/hostname.ts\n", "cannot be decoded as audio"),
    "concatenation": (b"ffconcat version 1.0\nfile '/etc/hostname'\n", "cannot be decoded as audio"),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("reader", [read_audio, lambda path: list(stream_audio(path))])
def test_the_error_for_a_bad_file_is_one_sentence(tmp_path: Path, name: str, reader) -> None:  # type: ignore[no-untyped-def]
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


@pytest.mark.parametrize("suffix", ["mp3", "m4a", "mp4", "webm", "opus", "ogg"])
@pytest.mark.parametrize("damage", ["half", "overwritten"])
def test_a_truncated_or_damaged_compressed_file_is_an_error_and_stderr_stays_empty(
    tmp_path: Path, suffix: str, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = encode(tmp_path / f"a.{suffix}", noise(64_000)[:, None], 16_000)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if damage == "half":
        del content[middle:]
    else:
        content[middle : middle + 500] = np.random.default_rng(1).bytes(500)
    path.write_bytes(content)
    with pytest.raises(AudioError, match=rf"a\.{suffix}: .*(truncated or damaged|cannot be decoded)") as caught:
        read_audio(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_truncated_m4a_whose_header_comes_first_is_an_error(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a", noise(64_000)[:, None], 16_000, movflags="faststart")
    assert len(read_audio(path)[0]) >= 64_000
    path.write_bytes(half(path.read_bytes()))
    with pytest.raises(AudioError, match="truncated or damaged"):
        read_audio(path)


@pytest.mark.parametrize("suffix", ["mp3", "m4a", "webm", "opus"])
def test_bytes_after_the_end_of_the_audio_are_ignored(tmp_path: Path, suffix: str) -> None:
    path = encode(tmp_path / f"a.{suffix}", noise(480_000)[:, None], 16_000)
    samples, _ = read_audio(path)
    path.write_bytes(path.read_bytes() + b"TAG" + b"a title".ljust(125, b"\0"))  # an ID3v1 tag
    np.testing.assert_array_equal(read_audio(path)[0], samples)


def test_an_mp3_without_a_header_of_its_length_is_read(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp3", noise(64_000)[:, None], 16_000, write_xing="0")
    assert abs(len(read_audio(path)[0]) - 64_000) < 2_500


def test_compressed_stereo_keeps_its_channels(tmp_path: Path) -> None:
    time = np.arange(16_000) / 16_000
    tones = [0.5 * np.sin(2 * np.pi * hertz * time) for hertz in (440, 1_000)]
    samples, rate = read_audio(encode(tmp_path / "a.m4a", np.stack(tones, axis=1).astype(np.float32), 16_000))
    spectrum = np.abs(np.fft.rfft(samples[rate // 4 : 3 * rate // 4], axis=0))
    assert spectrum.argmax(axis=0).tolist() == [220, 500]  # bins of 2 Hz


def test_a_damaged_adts_stream_is_an_error(tmp_path: Path) -> None:
    """AAC without a container declares no length."""
    path = encode(tmp_path / "a.aac", noise(64_000)[:, None], 16_000)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 500] = np.random.default_rng(1).bytes(500)
    path.write_bytes(content)
    with pytest.raises(AudioError, match="truncated or damaged"):
        read_audio(path)


def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    secret = encode(tmp_path / "secret.mp3", noise(16_000)[:, None], 16_000)
    lines = ["#EXTM3U", "#EXT-X-TARGETDURATION:5", "#EXTINF:5,", str(secret), "#EXT-X-ENDLIST", ""]
    (tmp_path / "list.m3u8").write_text("\n".join(lines))
    (tmp_path / "list.txt").write_text(f"ffconcat version 1.0\nfile '{secret.name}'\n")
    for name in ("list.m3u8", "list.txt"):
        with pytest.raises(AudioError, match="cannot be decoded as audio"):
            read_audio(tmp_path / name)


def test_a_video_without_sound_is_an_error(tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        container.mux([*stream.encode(picture), *stream.encode(None)])
    with pytest.raises(AudioError, match=r"a\.mp4: the file has no audio track"):
        read_audio(tmp_path / "a.mp4")


def test_reading_wav_and_flac_does_not_import_ffmpeg() -> None:
    code = f"import sys, headsync; headsync.read_audio({str(DEMO)!r}); assert 'av' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_a_file_with_an_invalid_rate_is_an_error(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "low.wav", noise(1000), 2000)
    with pytest.raises(AudioError, match=r"low\.wav: a sample rate of 2000 is not within 4000 to 192000"):
        read_audio(tmp_path / "low.wav")


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
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


def test_float_samples_above_full_scale_are_accepted() -> None:
    samples = 4.0 * noise(100)
    np.testing.assert_array_equal(mix_down(samples), samples)


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (np.array([0.0, np.nan]), "not finite"),
        (np.array([0.0, -np.inf]), "not finite"),
        (np.array([0.0, 1e300]), "not finite"),
        (np.array([0.0, -3e38]), "between -1 and 1, but there is one of 3e"),
        (32_768.0 * noise(100), r"not scaled; pass samples.astype\(np.int16\) .*, or divide them by 32768"),
        (noise(100).astype(np.float64) * 2**31, "not scaled"),
        (np.stack([noise(10), 50 * np.ones(10)], axis=1), "there is one of 50"),
        ([[0.0, 0.1], [0.2]], "not a table of numbers"),
        (np.float32(0.5), "is not audio"),
        (np.zeros((2, 3, 4), np.float32), "is not audio"),
        (np.zeros((2, 16_000), np.float32), r"pass \(samples, channels\)"),
        (np.zeros((100, 0), np.float32), "0 channels"),
        (np.zeros(10, np.uint8), "uint8"),
        (np.zeros(10, np.complex64), "complex64"),
        (["a", "b"], "not supported"),
    ],
)
def test_arrays_that_are_not_audio_are_errors(samples: object, reason: str) -> None:
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


def test_a_finished_resampler_can_be_used_again() -> None:
    samples, resampler = noise(5_000), Resampler(8_000)
    first = np.concatenate([resampler.push(samples), resampler.finish()])
    second = np.concatenate([resampler.push(samples), resampler.finish()])
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("rate", [0, -16_000, 3_999, 192_001, 16_000.5, "16000", None, True, float("nan")])
def test_an_invalid_rate_is_an_error(rate: object) -> None:
    with pytest.raises(AudioError, match="sample rate"):
        Resampler(rate)  # type: ignore[arg-type]
