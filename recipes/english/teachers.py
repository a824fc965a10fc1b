"""WER of Moonshine tiny and base on whole utterances, the reference of `results/english.md`.

python recipes/english/teachers.py runs/english/data/librispeech/dev.jsonl --limit 300 --teachers tiny base
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import soundfile as sf
import soxr
import torch
from label import READERS
from moonshine import Tokenizer
from score import word_errors
from speech import RATE, levelled


def read_16k(path: Path) -> np.ndarray:
    """Samples of a recording, averaged over channels."""
    samples, rate = sf.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(1)
    return mono if rate == RATE else soxr.resample(mono, rate, RATE)


def error_rate(teacher: str, manifest: Path, limit: int | None) -> tuple[float, int]:
    """Word error rate in per cent, and the number of words."""
    build, seconds = READERS[teacher]
    read, tokenizer, errors, words = build(), Tokenizer(), 0, 0
    rows = [json.loads(line) for line in manifest.read_text().splitlines()][:limit]
    sounds = [levelled(read_16k(manifest.parent / row["audio"])) for row in rows]
    batch: list[int] = []
    order = sorted(range(len(rows)), key=lambda i: len(sounds[i]))
    for place, i in enumerate(order):
        batch.append(i)
        if place + 1 < len(order) and len(sounds[order[place + 1]]) * (len(batch) + 1) < seconds * RATE:
            continue
        for row, tokens in zip(batch, read([sounds[b] for b in batch]), strict=True):
            found = word_errors(rows[row]["text"], tokenizer.decode(tokens))
            errors, words = errors + found[0], words + found[1]
        batch = []
    return 100 * errors / words, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifests", type=Path, nargs="+")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--teachers", nargs="+", choices=list(READERS), default=list(READERS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for manifest in arguments.manifests:
        for teacher in arguments.teachers:
            rate, words = error_rate(teacher, manifest, arguments.limit)
            print(f"{manifest}: {teacher} {rate:.2f} % of {words} words", flush=True)


if __name__ == "__main__":
    main()
