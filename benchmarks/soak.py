"""An hour of speech and silence in one session: memory, cost and recognised words.

    python benchmarks/soak.py [--model NAME_OR_FOLDER] [--manifest FILE.jsonl] [--minutes 60]

The utterances of the manifest (by default the bundled recordings) are repeated, with 2 to 20 s of silence, hum or noise
between them, and pushed in chunks of 0.1 s. Each utterance is then recognised in a separate session twice: alone, and
with up to 6 s of audio before and after it, starting at a block of the encoder. Differences from the latter are caused
by the long session; differences from the former also by the noise around a word and its position in a block.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import headsync
from headsync import Final, Recognizer
from headsync.corpora.manifest import read_manifest
from headsync.evaluation.error_rate import count_errors
from headsync.frontend.audio import FloatArray, mix_down, read_audio, resample

sys.path.append(str(Path(__file__).parent.parent / "recipes" / "digits"))

from audio_effects import decibel, noise_of

RATE = 16_000
AROUND = 6 * RATE
PIECE = RATE // 10
LONGEST_GAP = 20 * RATE
GAPS = ("white", "pink", "brown", "hum")


def recordings(manifest: Path | None) -> list[Path]:
    if manifest:
        return [utterance.audio for utterance in read_manifest(manifest)]
    return sorted((Path(headsync.__file__).parent / "demo").glob("*.flac"))


def sound(path: Path) -> FloatArray:
    samples, rate = read_audio(path)
    return resample(mix_down(samples), rate)


def gap(rng: np.random.Generator) -> FloatArray:
    length = int(rng.uniform(2 * RATE, LONGEST_GAP))
    if rng.random() < 0.3:
        return np.zeros(length, np.float32)
    return noise_of(str(rng.choice(GAPS)), length, rng) * np.float32(decibel(rng.uniform(-75.0, -45.0)))


def played(paths: list[Path], seconds: float) -> Iterator[tuple[Path, FloatArray, FloatArray]]:
    """Recordings, their samples and the gap after each; always the same ones."""
    rng, given = np.random.default_rng(1), 0.0
    while given < seconds:
        path = paths[int(rng.integers(len(paths)))]
        speech, pause = sound(path), gap(rng)
        yield path, speech, pause
        given += (len(speech) + len(pause)) / RATE


def pieces(paths: list[Path], seconds: float) -> Iterator[FloatArray]:
    """The stream in chunks of 0.1 s."""
    rest = np.zeros(0, np.float32)
    for _, speech, pause in played(paths, seconds):
        rest = np.concatenate([rest, speech, pause])
        while len(rest) >= PIECE:
            yield rest[:PIECE]
            rest = rest[PIECE:]
    yield rest


def one_by_one(recognizer: Recognizer, paths: list[Path], seconds: float) -> tuple[list[str], list[str]]:
    """The texts of the utterances alone, and of each with its surrounding audio."""
    rate = recognizer.config.frame_rate
    hop = recognizer.config.encoder.centre_frames * rate.stride * rate.hop
    bare: dict[Path, str] = {}
    alone, placed = [], []
    before, start = np.zeros(0, np.float32), 0
    for path, speech, pause in played(paths, seconds):
        if path not in bare:
            bare[path] = _text(recognizer, speech)
        alone.append(bare[path])
        first = max(0, start - min(len(before), AROUND))  # then rounded up to the next start of a block
        first = min(start, -(-first // hop) * hop)
        lead = before[len(before) - (start - first) :]
        placed.append(_text(recognizer, np.concatenate([lead, speech, pause[:AROUND]])))
        before, start = pause, start + len(speech) + len(pause)
    return alone, placed


def _text(recognizer: Recognizer, samples: FloatArray) -> str:
    return " ".join(final.text for final in recognizer.transcribe(samples, RATE))


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--minutes", type=int, default=60)
    given = parser.parse_args()
    recognizer, paths, seconds = Recognizer.load(given.model), recordings(given.manifest), 60.0 * given.minutes
    session, texts = recognizer.session(), list[str]()
    for kind in GAPS:  # allocate the memory for sounds before anything is measured
        noise_of(kind, LONGEST_GAP, np.random.default_rng(0))
    minutes: list[float] = [0.0]  # computing seconds of each minute of audio
    memory: list[float] = []
    for n, piece in enumerate(pieces(paths, seconds)):
        begun = time.process_time()  # not wall time: sounds are generated in between, and other programs run
        texts += [event.text for event in session.push(piece, RATE) if isinstance(event, Final)]
        minutes[-1] += time.process_time() - begun
        if (n + 1) % 600 == 0:
            memory.append(resident_mb())
            minutes.append(0.0)
    texts += [event.text for event in session.finish() if isinstance(event, Final)]
    early = memory[min(4, len(memory) - 1)]
    print(f"{len(memory)} minutes")
    print(f"memory after 5 minutes {early:.1f} MB, at the end {memory[-1]:.1f} MB: {memory[-1] / early - 1:+.1%}")
    first, last = np.median(minutes[:5]), np.median(minutes[-6:-1])
    print(f"computing per minute of audio: first five {first:.2f} s, last five {last:.2f} s: {last / first - 1:+.1%}")
    for name, expected in zip(
        ("alone", "with their surroundings"), one_by_one(recognizer, paths, seconds), strict=True
    ):
        counts = count_errors(" ".join(expected), " ".join(texts))
        print(f"{counts.words} words of {len(expected)} utterances one by one, {name}; in the stream "
              f"{counts.deletions} lost, {counts.insertions} added, {counts.substitutions} other")  # fmt: skip


if __name__ == "__main__":
    main()
