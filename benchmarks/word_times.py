"""How well the times of words fit: strings joined from single digits, so that the true boundaries are known.

    python benchmarks/word_times.py AUDIOMNIST [--model NAME_OR_FOLDER] [--strings 80]

The strings are of development speakers, five digits each, with pauses of up to 0.3 s. A string that is not recognised
word for word is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from headsync import Recognizer
from headsync.data.audiomnist import DIGITS, find_takes, split_speakers
from headsync.data.studio import Takes, read_take

RATE = 16_000


def string(takes: Takes, speaker: str, rng: np.random.Generator) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
    """Samples, and of every digit its word, start and end in seconds."""
    pieces, words = [np.zeros(int(rng.uniform(0.1, 1.0) * RATE), np.float32)], []
    for digit in rng.integers(10, size=5):
        take = read_take(takes[speaker][digit][rng.integers(len(takes[speaker][digit]))])
        first = sum(map(len, pieces))
        words.append((DIGITS[digit], (first + take.first) / RATE, (first + take.end) / RATE))
        pieces += [take.samples / np.float32(32768), np.zeros(int(rng.uniform(0.0, 0.3) * RATE), np.float32)]
    samples = np.concatenate(pieces)
    samples = 0.3 * samples / np.abs(samples).max() + 1e-4 * rng.standard_normal(len(samples))
    return samples.astype(np.float32), words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audiomnist", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--strings", type=int, default=80)
    given = parser.parse_args()
    takes, sexes = find_takes(given.audiomnist)
    speakers, rng = split_speakers(sexes)["dev"], np.random.default_rng(1)
    recognizer, errors = Recognizer.load(given.model), []
    for _ in range(given.strings):
        samples, truth = string(takes, str(rng.choice(speakers)), rng)
        words = [word for final in recognizer.transcribe(samples, RATE) for word in final.words]
        if [word.text for word in words] == [text for text, _, _ in truth]:
            pairs = zip(words, truth, strict=True)
            errors += [(word.start_seconds - start, word.end_seconds - end) for word, (_, start, end) in pairs]
    print(f"{len(errors)} words of {5 * given.strings}; errors in seconds")
    print("| | median of absolute error | 5 % | 25 % | 50 % | 75 % | 95 % |\n|---|---|---|---|---|---|---|")
    for name, values in zip(("start", "end"), np.array(errors).T, strict=True):
        shown = " | ".join(f"{value:+.3f}" for value in np.percentile(values, [5, 25, 50, 75, 95]))
        print(f"| {name} | {np.median(np.abs(values)):.3f} | {shown} |")


if __name__ == "__main__":
    main()
