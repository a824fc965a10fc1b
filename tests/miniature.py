"""A miniature of AudioMNIST, with tones for digits, and a miniature of speechocean762."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from digit_strings import PARTS
from headsync.corpora.manifest import Counts, Utterance, read_manifest

SMALL = Counts(train=14, dev=3, test=4)
FEW = Counts(train=4, dev=1, test=1)
FEMALE = ("03", "06", "07")


def say(path: Path, hertz: float, seconds: float, rate: int, seed: int) -> None:
    """Write a tone with silence around it, in faint noise."""
    generator = np.random.default_rng(seed)
    tone = 0.02 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
    samples = np.pad(tone, rate // 6) + generator.normal(0, 0.0002, len(tone) + 2 * (rate // 6))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, subtype="PCM_16")


SENTENCES = {
    "train": [
        ("t1", "s1", "WE CALL IT BEAR"),  # of the development speaker
        ("t2", "s2", "GO TO THE SHOP"),  # sounds like two
        ("t3", "s3", "ZERO THREE FIVE"),  # natural
        ("t4", "s3", "MY DOG IS OLD"),  # excluded: its speaker has a natural string
        ("t5", "s4", "NO ONE KNOWS"),  # a digit among others
        ("t6", "s4", "HE WON IT"),  # sounds like one
        ("t7", "s4", "SEVENTEEN PEOPLE"),  # a separate word
        ("t8", "s2", "THE HOUSE IS BIG"),
    ],
    "test": [("e1", "s8", "FINE DAY"), ("e2", "s9", "NINE"), ("e3", "s9", "TWO CATS"), ("e4", "s9", "GREEN GRASS")],
}


def read_all(folder: Path) -> dict[str, list[Utterance]]:
    return {part: read_manifest(folder / f"{part}.jsonl") for part in PARTS}
