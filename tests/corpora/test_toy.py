"""The toy corpus: fast, reproducible, and with distinguishable words."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import soundfile

from headsync.corpora.manifest import Counts, read_manifest
from headsync.corpora.toy import WORDS, prepare, speak
from headsync.frontend.audio import SAMPLE_RATE
from headsync.frontend.features import log_mel

SMALL = Counts(train=12, dev=3, test=3)


def test_the_corpus_is_generated_in_seconds(tmp_path: Path) -> None:
    begin = time.process_time()
    prepare(tmp_path)
    assert time.process_time() - begin < 10
    assert [len(read_manifest(tmp_path / f"{part}.jsonl")) for part in ("train", "dev", "test")] == [400, 40, 40]


def test_every_string_is_flac_of_one_to_five_known_words(tmp_path: Path) -> None:
    prepare(tmp_path, strings=SMALL)
    for part in ("train", "dev", "test"):
        for one in read_manifest(tmp_path / f"{part}.jsonl"):
            info = soundfile.info(one.audio)
            assert (info.format, info.samplerate, info.channels) == ("FLAC", SAMPLE_RATE, 1)
            assert 1 <= len(one.text.split()) <= 5
            assert set(one.text.split()) <= set(WORDS)


def test_the_same_seed_gives_the_same_corpus(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        prepare(tmp_path / name, seed=seed, strings=SMALL)
    contents = {
        name: {path.name: path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))}
        for name in ("one", "again", "two")
    }
    assert contents["one"] == contents["again"]
    assert contents["one"] != contents["two"]


def test_the_parts_do_not_repeat_each_other(tmp_path: Path) -> None:
    prepare(tmp_path, strings=SMALL)
    sounds = [path.read_bytes() for path in tmp_path.rglob("*.flac")]
    assert len(set(sounds)) == len(sounds)


def test_the_nearest_mean_spectrum_classifies_the_words() -> None:
    """Mean and movement of the spectrum suffice, so a tiny network can learn the words too."""

    def summary(word: str, seed: int) -> np.ndarray:
        frames = log_mel(np.pad(speak(word, np.random.default_rng(seed)), 400))
        frames = frames - frames.mean()
        return np.concatenate([part.mean(axis=0) for part in np.array_split(frames, 3)])

    means = {word: np.mean([summary(word, seed) for seed in range(10)], axis=0) for word in WORDS}
    for word in WORDS:
        for seed in range(10, 20):
            found = summary(word, seed)
            assert min(means, key=lambda known: float(np.linalg.norm(found - means[known]))) == word
