"""Deletions, substitutions and insertions of single words in stationary noise.

    python recipes/digits/steady_noise.py AUDIOMNIST [--model NAME_OR_FOLDER] [--speakers dev] [--words 100]

Digits of development or test speakers follow each other at four seconds in one stream, so that each has to open an
utterance. The table has deletions / substitutions / insertions for each noise, rate and speech-to-noise ratio.
`--foreground DB` sets `endpoint.foreground_db`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jiwer
import numpy as np
import soxr

from audio_effects import decibel, noise_of
from digit_corpus import DIGITS, MARGIN_SAMPLES, as_float, find_takes, read_take, split_speakers
from headsync import Recognizer
from headsync.frontend.audio import SAMPLE_RATE, FloatArray

PAUSE = np.zeros(4 * SAMPLE_RATE, np.float32)
LEVEL = np.float32(0.05)  # of every word, root mean square
RATIOS_DB = (30, 20, 15, 10, 5)


def spoken(audiomnist: Path, speakers: str, words: int) -> tuple[FloatArray, str]:
    """The stream without noise, and its text."""
    takes, sexes = find_takes(audiomnist)
    names, rng = split_speakers(sexes)[speakers], np.random.default_rng(5)
    pieces, text = [PAUSE], []
    for number in range(words):
        digit = int(rng.integers(10))
        recordings = takes[names[number % len(names)]][digit]
        take = read_take(recordings[int(rng.integers(len(recordings)))])
        word = as_float(take.samples[max(0, take.first - MARGIN_SAMPLES) : take.end + MARGIN_SAMPLES])
        pieces += [word * (LEVEL / np.sqrt(np.mean(np.square(word)))), PAUSE]
        text.append(DIGITS[digit])
    return np.concatenate(pieces), " ".join(text)


def errors(recognizer: Recognizer, samples: FloatArray, rate: int, text: str) -> str:
    if rate != SAMPLE_RATE:
        samples = soxr.resample(samples, SAMPLE_RATE, rate)
    found = jiwer.process_words(text, " ".join(final.text for final in recognizer.transcribe(samples, rate)))
    return f"{found.deletions} / {found.substitutions} / {found.insertions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audiomnist", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--speakers", choices=("dev", "test"), default="dev")
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--foreground", type=float)
    given = parser.parse_args()
    recognizer = Recognizer.load(given.model, foreground_db=given.foreground)
    samples, text = spoken(given.audiomnist, given.speakers, given.words)
    print("| noise | rate | " + " | ".join(f"{ratio} dB" for ratio in RATIOS_DB) + " |")
    print("|---|---|" + "---|" * len(RATIOS_DB))
    for kind in ("white", "pink", "brown", "hum"):
        noise = LEVEL * noise_of(kind, len(samples), np.random.default_rng(7))
        for rate in (SAMPLE_RATE, 8000):
            noisy = (samples + noise * np.float32(decibel(-ratio)) for ratio in RATIOS_DB)
            print(f"| {kind} | {rate} | " + " | ".join(errors(recognizer, one, rate, text) for one in noisy) + " |")


if __name__ == "__main__":
    main()
