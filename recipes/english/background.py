"""Write encoder states of recordings without a clear voice to a cache, with an empty text.

    python recipes/english/background.py --checkpoint runs/english/adapt/last

Noise, babble of four to eight voices of the training speech, tones and silence, each 1.5 to 8 s. Half of the recordings
are the start of a stream, half follow an utterance. On these states CTC learns to emit blanks only, and the decoder to
end the sentence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from augment import finished, noise
from cache import FOLDER, SIZE, Line, labelled, read_index, states_of
from moonshine import FIELD, HOP, RATE, Encoder, Shape, frames_of
from safetensors.torch import load_file, save_file
from speech import Utterance, fixed_subset, levelled, samples_of
from torch import Tensor

SHARD, SECONDS, VOICES = 128, (1.5, 8.0), 400


def background(utterances: Sequence[Utterance], rng: np.random.Generator) -> np.ndarray:
    """Noise, babble of several voices, tones or silence, with a peak of at most 0.5."""
    kind, length = rng.random(), int(rng.uniform(*SECONDS) * RATE)
    samples = np.zeros(length, np.float32)
    if kind < 0.3:
        samples += noise(length, rng)
    elif kind < 0.7:
        for _ in range(int(rng.integers(4, 9))):
            voice = levelled(samples_of(utterances[int(rng.integers(len(utterances)))]))
            samples += np.resize(np.roll(voice, int(rng.integers(len(voice)))), length)
    elif kind < 0.85:
        time_N = np.arange(length) / RATE
        for _ in range(int(rng.integers(1, 5))):
            note = 110.0 * 2 ** (rng.integers(0, 48) / 12)
            samples += np.sum([np.sin(2 * np.pi * k * note * time_N) / k for k in range(1, 6)], 0, dtype=np.float32)
    return levelled(samples) * np.float32(10 ** (-rng.uniform(0, 30) / 20)) if samples.any() else samples


def stream(utterances: Sequence[Utterance], rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Samples of a stream that ends with background, and the state at which the background begins."""
    speech = np.zeros(0, np.float32)
    if rng.random() < 0.5:
        speech = levelled(samples_of(utterances[int(rng.integers(len(utterances)))]))
        speech = np.pad(speech, (0, -len(speech) % (2 * HOP)))
    row = np.concatenate([speech, background(utterances, rng)])
    row = row + noise(len(row), rng) * np.float32(10 ** (rng.uniform(-80, -50) / 20))
    return np.pad(finished(row, rng), (0, FIELD)), len(speech) // HOP


def shard(encoder: Encoder, utterances: Sequence[Utterance], path: Path, rng: np.random.Generator) -> list[Line]:
    """Write one shard; returns the lines of its index."""
    found, shape = dict[str, Tensor](), Shape.of(*SIZE)
    for n in range(SHARD):
        row, first = stream(utterances, rng)
        states = states_of(encoder, [row], shape)[0]
        found[f"{path.stem}-{n}"] = states[first : frames_of(len(row) - FIELD)].clone()
    save_file(found, path)
    known = {"copy": 0, "file": path.name, "corpus": "background", "text": ""}
    return [{"id": key, "key": key, "frames": len(states), **known} for key, states in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder with model.safetensors")
    parser.add_argument("--name", default="train", help="folder under runs/english/cache")
    parser.add_argument("--shards", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    encoder = Encoder().eval()
    encoder.load_state_dict(load_file(arguments.checkpoint / "model.safetensors"))
    done = {row["file"] for row in read_index(arguments.name)}
    utterances = fixed_subset([u for corpus, u in labelled() if corpus != "digits" and 2 < u.seconds < 12], VOICES)
    for number in range(arguments.shards):
        path = FOLDER / arguments.name / f"background-{number}.safetensors"
        if path.name not in done:
            lines = shard(encoder, utterances, path, np.random.default_rng([7, number]))
            with (FOLDER / arguments.name / "index.jsonl").open("a") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
            print(f"{path.name}: {sum(line['frames'] for line in lines) * HOP / RATE / 60:.1f} min", flush=True)


if __name__ == "__main__":
    main()
