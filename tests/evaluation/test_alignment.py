"""Forced alignment for reference word times, and its cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from commands import run
from headsync.corpora.manifest import Utterance, write_manifest
from headsync.errors import ConfigError, DataError
from headsync.evaluation import alignment
from headsync.evaluation.alignment import Aligner, aligned_times, load_aligner
from headsync.evaluation.latency import TimedWord
from headsync.frontend.audio import FloatArray, mix_down, read_audio, resample
from recordings import DIGIT_RECORDINGS


class Evenly:
    """Gives every word the same share of the recording, and counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, samples: FloatArray, words: Sequence[str]) -> list[TimedWord] | None:
        self.asked += 1
        each = len(samples) / 16_000 / len(words)
        return None if "xyzzy" in words else [TimedWord(w, n * each, (n + 1) * each) for n, w in enumerate(words)]


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    for name in ("a", "b", "c"):
        soundfile.write(tmp_path / f"{name}.wav", np.full(16_000, ord(name) / 1000, np.float32), 8000)
    texts = {"a": "one two", "b": "three xyzzy", "c": ""}
    return [Utterance(name, tmp_path / f"{name}.wav", text, 2.0) for name, text in texts.items()]


def test_times_are_computed_once_for_a_model_a_text_and_the_content_of_a_file(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    evenly, cache = Evenly(), tmp_path / "times.json"
    first = aligned_times(utterances, Aligner("evenly 1", evenly), cache)
    assert first == {"a": [TimedWord("one", 0.0, 1.0), TimedWord("two", 1.0, 2.0)]}
    assert evenly.asked == 2  # an empty text needs no alignment
    assert aligned_times(utterances, Aligner("evenly 1", evenly), cache) == first
    assert evenly.asked == 2  # also not that which failed
    aligned_times([replace(utterances[0], text="one")], Aligner("evenly 1", evenly), cache)
    assert evenly.asked == 3
    assert aligned_times(utterances, Aligner("evenly 1", evenly), cache) == first
    assert evenly.asked == 4
    soundfile.write(utterances[0].audio, np.zeros(8_000, np.float32), 8000)
    after = aligned_times(utterances, Aligner("evenly 1", evenly), cache)
    assert after["a"][1].end == 1.0
    assert evenly.asked == 5
    aligned_times(utterances, Aligner("evenly 2", evenly), cache)
    assert evenly.asked == 7


def test_a_run_that_was_stopped_continues(utterances: list[Utterance], tmp_path: Path) -> None:
    many = [replace(utterances[0], id=str(number)) for number in range(60)]
    evenly = Evenly()

    def stops(samples: FloatArray, words: Sequence[str]) -> list[TimedWord] | None:
        if evenly.asked == 55:
            raise KeyboardInterrupt
        return evenly(samples, words)

    with pytest.raises(KeyboardInterrupt):
        aligned_times(many, Aligner("evenly", stops), tmp_path / "times.json")
    again = Evenly()
    assert len(aligned_times(many, Aligner("evenly", again), tmp_path / "times.json")) == 60
    assert again.asked == 60 - alignment.SAVE_EVERY


def test_errors_are_one_sentence(utterances: list[Utterance], tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text("{")
    with pytest.raises(DataError, match=r"times\.json: these cached word times cannot be read"):
        aligned_times(utterances, Aligner("evenly", Evenly()), tmp_path / "times.json")
    utterances[0].audio.unlink()
    with pytest.raises(DataError, match=r"a\.wav: cannot be read"):
        aligned_times(utterances, Aligner("evenly", Evenly()), tmp_path / "new.json")
    with pytest.raises(ConfigError, match="pocketsphinx"):
        load_aligner("pocketsphnix")


def test_pocketsphinx_finds_the_words_of_a_recording(tmp_path: Path) -> None:
    """Every word begins and ends in a louder part of the recording, in order, and none is outside of it."""
    pytest.importorskip("pocketsphinx")
    align = load_aligner("pocketsphinx").align
    recording = sorted(DIGIT_RECORDINGS.glob("*.flac"))[0]
    samples = resample(mix_down(read_audio(recording)[0]), read_audio(recording)[1])
    text = recording.with_suffix(".txt").read_text().split()
    padded = np.concatenate([np.zeros(8_000, np.float32), samples, np.zeros(16_000, np.float32)])
    words = align(padded, text)
    assert words is not None
    assert [word.text for word in words] == text
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert times[0] > 0.4
    assert times[-1] < len(padded) / 16_000 - 0.8
    assert align(padded, ["xyzzyplugh"]) is None


def test_pocketsphinx_is_not_loaded_for_cached_times(
    utterances: list[Utterance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pocketsphinx = pytest.importorskip("pocketsphinx")
    aligned_times(utterances, load_aligner("pocketsphinx"), tmp_path / "times.json")
    monkeypatch.setattr(pocketsphinx, "Decoder", None)
    aligned_times(utterances, load_aligner("pocketsphinx"), tmp_path / "times.json")
    with pytest.raises(TypeError):
        aligned_times([replace(utterances[0], text="two")], load_aligner("pocketsphinx"), tmp_path / "times.json")


def test_evaluate_takes_word_times_from_an_aligner(
    utterances: list[Utterance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(alignment.ALIGNERS, "pocketsphinx", lambda: Aligner("evenly", Evenly()))
    manifest = tmp_path / "test.jsonl"
    write_manifest(manifest, utterances[:1])
    result = run("evaluate", "digits-en", manifest, "--align", "pocketsphinx", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["word_times"] == "reference"
    assert figures["word_times_file"] == str(tmp_path / "test.pocketsphinx.json")
    assert (tmp_path / "test.pocketsphinx.json").exists()
    both = run("evaluate", "digits-en", manifest, "--align", "pocketsphinx", "--times", tmp_path / "x.ctm")
    assert both.stderr == "--times and --align exclude each other; leave one of them out.\n"
