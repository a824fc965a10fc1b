"""Errors of word times, on strings joined from single digits, where the true boundaries are known.

    python recipes/digits/word_times.py AUDIOMNIST [--model NAME_OR_FOLDER] [--strings 80] [--manifest MANIFEST]
    python recipes/digits/word_times.py AUDIOMNIST --write FOLDER [--strings 80]

The strings are of development speakers, five digits each, with pauses of up to 0.3 s. Strings with recognition errors
are skipped. With a manifest, its recordings are used instead, and the times are compared with a forced alignment of the
reference text by the CTC of the same model. --write only writes strings and their word times, for measuring delays.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import soundfile

from digit_corpus import DIGITS, Takes, find_takes, read_take, split_speakers
from headsync import Recognizer
from headsync.corpora.manifest import Utterance, read_manifest, write_manifest
from headsync.frontend.audio import read_audio
from headsync.model_folder import find
from headsync.training.forced_alignment import align_words

RATE = 16_000


def string(takes: Takes, speaker: str, rng: np.random.Generator) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
    """Samples, and the word, start and end in seconds of every digit."""
    pieces: list[np.ndarray] = [np.zeros(int(rng.uniform(0.1, 1.0) * RATE), np.float32)]
    words = []
    for digit in rng.integers(10, size=5):
        take = read_take(takes[speaker][digit][rng.integers(len(takes[speaker][digit]))])
        first = sum(map(len, pieces))
        words.append((DIGITS[digit], (first + take.first) / RATE, (first + take.end) / RATE))
        pieces += [take.samples / np.float32(32768), np.zeros(int(rng.uniform(0.0, 0.3) * RATE), np.float32)]
    samples = np.concatenate(pieces)
    samples = 0.3 * samples / np.abs(samples).max() + 1e-4 * rng.standard_normal(len(samples))
    return samples.astype(np.float32), words


def write_strings(audiomnist: Path, out: Path, strings: int) -> None:
    """Write strings of development and of test speakers with a second of silence behind, and their word times."""
    takes, sexes = find_takes(audiomnist)
    rng = np.random.default_rng(1)
    for part in ("dev", "test"):
        utterances, times = [], {}
        for number in range(strings):
            speaker = str(rng.choice(split_speakers(sexes)[part]))
            samples, truth = string(takes, speaker, rng)
            samples = np.concatenate([samples, 1e-4 * rng.standard_normal(RATE).astype(np.float32)])
            path = out / f"{part}-{number:03}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, samples, RATE, subtype="PCM_16")
            text = " ".join(word for word, _, _ in truth)
            utterances.append(Utterance(path.stem, path, text, len(samples) / RATE, speaker))
            times[path.stem] = [{"text": word, "start": start, "end": end} for word, start, end in truth]
        write_manifest(out / f"{part}.jsonl", utterances)
        (out / f"{part}.words.json").write_text(json.dumps(times), encoding="utf-8")


def joined(audiomnist: Path, recognizer: Recognizer, strings: int) -> list[tuple[float, float]]:
    """Errors of starts and ends against the positions of the joined digits."""
    takes, sexes = find_takes(audiomnist)
    speakers, rng = split_speakers(sexes)["dev"], np.random.default_rng(1)
    errors: list[tuple[float, float]] = []
    for _ in range(strings):
        samples, truth = string(takes, str(rng.choice(speakers)), rng)
        words = [word for final in recognizer.transcribe(samples, RATE) for word in final.words]
        if [word.text for word in words] == [text for text, _, _ in truth]:
            pairs = zip(words, truth, strict=True)
            errors += [(word.start_seconds - start, word.end_seconds - end) for word, (_, start, end) in pairs]
    return errors


def aligned(manifest: Path, recognizer: Recognizer, model: str | None) -> list[tuple[float, float]]:
    """Errors of starts and ends against forced alignment; CTC spikes are short, so ends are early there."""
    utterances, errors = read_manifest(manifest), []
    truth = align_words(find(model), utterances)
    for utterance in utterances:
        finals = recognizer.transcribe(*read_audio(utterance.audio))
        words = [word for final in finals for word in final.words]
        if [word.text for word in words] == utterance.text.split() and utterance.id in truth:
            pairs = zip(words, truth[utterance.id], strict=True)
            errors += [(word.start_seconds - said[0], word.end_seconds - said[1]) for word, said in pairs]
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audiomnist", type=Path, nargs="?")
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--strings", type=int, default=80)
    parser.add_argument("--write", type=Path, help="only write the strings, manifests and word times to this folder")
    given = parser.parse_args()
    if given.write:
        write_strings(given.audiomnist, given.write, given.strings)
        return
    recognizer = Recognizer.load(given.model)
    if given.manifest:
        errors = aligned(given.manifest, recognizer, given.model)
    else:
        errors = joined(given.audiomnist, recognizer, given.strings)
    print(f"{len(errors)} words; errors in seconds")
    print("| | median of absolute error | 5 % | 25 % | 50 % | 75 % | 95 % |\n|---|---|---|---|---|---|---|")
    for name, values in zip(("start", "end"), np.array(errors).T, strict=True):
        shown = " | ".join(f"{value:+.3f}" for value in np.percentile(values, [5, 25, 50, 75, 95]))
        print(f"| {name} | {np.median(np.abs(values)):.3f} | {shown} |")


if __name__ == "__main__":
    main()
