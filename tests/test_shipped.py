"""The shipped models: the demo recordings, silence, and real speech of unseen speakers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import jiwer
import numpy as np
import pytest
from typer.testing import CliRunner

from digit_corpus import DIGITS, find_takes, natural_strings, read_kaldi, split_speakers
from headsync import Final, ModelError, Recognizer
from headsync.cli.app import app
from headsync.cli.demo import RECORDINGS
from headsync.frontend.audio import mix_down, read_audio, resample
from headsync.model_folder import CARD, CHECKSUMS, CONFIG, WEIGHTS, shipped
from recordings import DIGIT_RECORDINGS

RATE = 16_000


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return Recognizer.load()


@pytest.fixture(scope="module")
def digits() -> Recognizer:
    return Recognizer.load("digits-en")


def text_of(recognizer: Recognizer, samples: np.ndarray, rate: int = RATE) -> str:
    return " ".join(final.text for final in recognizer.transcribe(samples, rate))


def error_rate(pairs: list[tuple[str, str]]) -> float:
    return jiwer.wer([reference for reference, _ in pairs], [hypothesis for _, hypothesis in pairs])


def test_the_demo_recordings_are_recognised(recognizer: Recognizer) -> None:
    """Five of six; in one, "in a library" is taken for "in the library"."""
    pairs = [(path.with_suffix(".txt").read_text().strip(), path) for path in sorted(RECORDINGS.glob("*.flac"))]
    texts = [(text, text_of(recognizer, *read_audio(path))) for text, path in pairs]
    assert sum(text == found for text, found in texts) >= 5
    assert jiwer.process_words(*map(list, zip(*texts, strict=True))).substitutions <= 1


def test_an_utterance_after_a_pause_is_recognised_as_alone(recognizer: Recognizer) -> None:
    """The encoder's left context is dropped at an endpoint; the time of the endpoint does not depend on the chunks."""
    recordings = sorted(RECORDINGS.glob("*.flac"))[:3]
    pause = np.zeros(24_000, np.float32)
    samples = np.concatenate([part for path in recordings for part in (mix_down(read_audio(path)[0]), pause)])
    texts = [path.with_suffix(".txt").read_text().strip() for path in recordings]
    for size in (1_600, 50_000):
        session = recognizer.session()
        events = [e for n in range(0, len(samples), size) for e in session.push(samples[n : n + size], RATE)]
        assert [event.text for event in events + session.finish() if isinstance(event, Final)] == texts


@pytest.mark.parametrize("recording", sorted(DIGIT_RECORDINGS.glob("*.flac")), ids=lambda path: path.stem)
def test_digit_recordings_are_recognised(digits: Recognizer, recording: Path) -> None:
    samples, rate = read_audio(recording)
    assert text_of(digits, samples, rate) == recording.with_suffix(".txt").read_text().strip()


@pytest.mark.parametrize("noise", ["nothing", "white", "hum"])
def test_a_minute_without_speech_brings_no_word(recognizer: Recognizer, noise: str) -> None:
    time = np.arange(60 * RATE) / RATE
    sounds = {
        "nothing": np.zeros_like(time),
        "white": 0.01 * np.random.default_rng(1).standard_normal(len(time)),
        "hum": 0.02 * np.sin(2 * np.pi * 50 * time) + 0.01 * np.sin(2 * np.pi * 150 * time),
    }
    assert text_of(recognizer, sounds[noise].astype(np.float32)) == ""


def test_cutting_a_demo_recording_changes_no_event(recognizer: Recognizer) -> None:
    samples, rate = read_audio(sorted(RECORDINGS.glob("*.flac"))[0])
    whole = recognizer.session()
    expected = whole.push(samples, rate) + whole.finish()
    rng = np.random.default_rng(1)
    pieces = recognizer.session()
    events = []
    first = 0
    while first < len(samples):
        size = int(rng.choice([1, 7, 160, 1000, 5000]))
        events += pieces.push(samples[first : first + size], rate)
        first += size
    events += pieces.finish()
    assert events == expected
    assert any(isinstance(event, Final) for event in events)


PHRASES = ["one two", "Three!"]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


@pytest.mark.parametrize("recording", sorted(RECORDINGS.glob("*.flac"))[:3], ids=lambda path: path.stem)
def test_a_phrase_list_restricts_the_text_of_the_demo(recognizer: Recognizer, recording: Path) -> None:
    """However the audio is cut: half of the words are in the list, the others are [unk]."""
    samples, rate = read_audio(recording)
    listed = sorted(set(words(recording.with_suffix(".txt").read_text())))[::2]
    whole = recognizer.session(phrases=[*listed, "[unk]"])
    expected = whole.push(samples, rate) + whole.finish()
    pieces, rng = recognizer.session(phrases=[*listed, "[unk]"]), np.random.default_rng(2)
    cuts = np.sort(rng.integers(0, len(samples), 20))
    events = [event for piece in np.split(samples, cuts) for event in pieces.push(piece, rate)] + pieces.finish()
    assert events == expected
    text = " ".join(event.text for event in events if isinstance(event, Final)).replace("[unk]", " ")
    assert words(text)
    assert set(words(text)) <= set(listed)


def test_a_phrase_list_restricts_real_digits(digits: Recognizer, shared_data: Path) -> None:
    takes, sexes = find_takes(shared_data / "AudioMNIST")
    for speaker in split_speakers(sexes)["test"][:4]:
        said = [read_audio(takes[speaker][digit][0]) for digit in (1, 2, 3, 3, 1, 2)]
        samples = np.concatenate([resample(mix_down(samples), rate) for samples, rate in said])
        session = digits.session(phrases=PHRASES)
        finals = [event for event in session.push(samples, RATE) + session.finish() if isinstance(event, Final)]
        assert " ".join(final.text for final in finals) == "one two three three one two"
        other = digits.session(phrases=["four five", "six"])
        finals = [event for event in other.push(samples, RATE) + other.finish() if isinstance(event, Final)]
        assert re.fullmatch(r"((four five|six)( |$))*", " ".join(final.text for final in finals))


def test_real_digits_of_unseen_speakers(digits: Recognizer, shared_data: Path) -> None:
    takes, sexes = find_takes(shared_data / "AudioMNIST")
    pairs = []
    for speaker in split_speakers(sexes)["test"]:
        parts = []
        for digit in range(10):
            samples, rate = read_audio(takes[speaker][digit][0])
            parts.append(resample(mix_down(samples), rate))
        pairs.append((" ".join(DIGITS), text_of(digits, np.concatenate(parts))))
    assert error_rate(pairs) <= 0.05


def test_naturally_spoken_strings(digits: Recognizer, shared_data: Path) -> None:
    spoken = {part: read_kaldi(shared_data / "speechocean762", part) for part in ("train", "test")}
    pairs = [(one.text, text_of(digits, *read_audio(one.audio))) for one in natural_strings(spoken)]
    assert len(pairs) == 77
    assert error_rate(pairs) <= 0.30


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_files_have_checksums(name: str, tmp_path: Path) -> None:
    """Two thousand bytes overwritten in the weights: an error, not an empty text."""
    copy = Path(shutil.copytree(shipped()[name], tmp_path / name))
    listed = {line.split("  ")[1] for line in (copy / CHECKSUMS).read_text().splitlines()}
    assert listed == {path.name for path in copy.iterdir()} - {CHECKSUMS, CONFIG, CARD}
    with (copy / WEIGHTS).open("r+b") as file:
        file.seek(100_000)
        file.write(bytes(2000))
    done = CliRunner().invoke(app, ["transcribe", str(min(RECORDINGS.glob("*.flac"))), "--model", str(copy)])
    assert done.exit_code == 1
    assert "weights.safetensors: damaged: its checksum differs" in " ".join(done.output.split())


def test_an_unknown_mechanism_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(shipped()["digits-en"], folder)
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('"hs-dacs"', '"hs-dacz"'))
    with pytest.raises(ModelError, match=r"damaged: .* decoder\.attention = 'hs-dacs', .* 'hs-dacz'"):
        Recognizer.load(folder)
