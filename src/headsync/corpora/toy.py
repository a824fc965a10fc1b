"""A toy corpus of synthetic sounds: strings of six invented words, made from tones and bursts of noise.

It is generated in seconds, and a tiny network learns it in a minute. A string depends only on the seed, its part and
its number.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from headsync.corpora.audio_files import write_flac
from headsync.corpora.manifest import Counts as Counts
from headsync.corpora.manifest import Utterance, write_manifest
from headsync.frontend.audio import SAMPLE_RATE, FloatArray

STRINGS = Counts(train=400, dev=40, test=40)
PARTS = ("train", "dev", "test")


class Sound(NamedTuple):
    """A word: two gliding tones after a burst of noise."""

    tones: tuple[float, float]  # Hz
    glide: float  # relative rise of the tones
    burst: float  # Hz; 0 for none


WORDS = {
    "ba": Sound((700.0, 1200.0), 0.0, 0.0),
    "di": Sound((300.0, 2400.0), 0.0, 3500.0),
    "gu": Sound((350.0, 800.0), -0.2, 1500.0),
    "mo": Sound((500.0, 900.0), 0.3, 0.0),
    "ke": Sound((450.0, 1900.0), 0.2, 2500.0),
    "su": Sound((320.0, 1000.0), 0.0, 5500.0),
}


def prepare(out: Path, *, seed: int = 1, strings: Counts = STRINGS) -> None:
    """Write a manifest and a folder of FLAC files for train, dev and test to `out`."""
    for part, count in zip(PARTS, (strings.train, strings.dev, strings.test), strict=True):
        folder = Path(out) / part
        folder.mkdir(parents=True, exist_ok=True)
        write_manifest(Path(out) / f"{part}.jsonl", [_utterance(folder, part, index, seed) for index in range(count)])


def _utterance(folder: Path, part: str, index: int, seed: int) -> Utterance:
    samples, text = string(np.random.default_rng([seed, PARTS.index(part), index]))
    path = folder / f"{part}-{index:05d}.flac"
    return Utterance(path.stem, path, text, write_flac(path, samples, SAMPLE_RATE).seconds, "toy")


def string(generator: np.random.Generator) -> tuple[FloatArray, str]:
    """One to five words with pauses around them, in faint noise."""
    words = [str(word) for word in generator.choice(list(WORDS), size=generator.integers(1, 6))]
    pieces = [_silence(0.05, 0.4, generator)]
    for word in words:
        pieces += [speak(word, generator), _silence(0.03, 0.25, generator)]
    clean = np.concatenate(pieces)
    noise = generator.standard_normal(len(clean), dtype=np.float32) * np.float32(generator.uniform(0.001, 0.004))
    return clean + noise, " ".join(words)


def speak(word: str, generator: np.random.Generator) -> FloatArray:
    """A word with random length, pitch and level."""
    sound = WORDS[word]
    length = round(generator.uniform(0.2, 0.35) * SAMPLE_RATE)
    turns = np.linspace(0.0, 1.0, length)
    voice = generator.uniform(0.95, 1.05)
    samples = np.zeros(length)
    for tone, amplitude in zip(sound.tones, (1.0, 0.7), strict=True):
        hertz = tone * voice * (1.0 + sound.glide * turns)
        phases = 2.0 * np.pi * (np.cumsum(hertz) / SAMPLE_RATE + generator.random())
        samples += amplitude * np.sin(phases)
    samples *= np.sin(np.pi * turns) ** 0.5
    if sound.burst:
        samples = np.concatenate([_burst(sound.burst * voice, generator), samples])
    return (samples * generator.uniform(0.05, 0.2)).astype(np.float32)


def _burst(hertz: float, generator: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Noise in a band of a few hundred hertz: a tone with random phase modulation."""
    length = round(generator.uniform(0.05, 0.09) * SAMPLE_RATE)
    phase = 2.0 * np.pi * hertz / SAMPLE_RATE * np.arange(length) + np.cumsum(generator.normal(0.0, 0.3, length))
    return np.asarray(np.sin(phase) * np.sin(np.pi * np.linspace(0.0, 1.0, length)))


def _silence(shortest: float, longest: float, generator: np.random.Generator) -> FloatArray:
    return np.zeros(round(generator.uniform(shortest, longest) * SAMPLE_RATE), dtype=np.float32)
