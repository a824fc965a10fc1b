"""Write the states of a frozen streaming encoder to disk, clean and in augmented copies, for the decoder's training.

    python recipes/english/cache.py train --checkpoint runs/english/adapt/last --copies 2
    python recipes/english/cache.py dev --checkpoint runs/english/adapt/last

States are half precision, (frames, 288) under ID#COPY in shards of 256 utterances (a second of speech takes 24
kB); index.jsonl has the location of each. Copy 0 is the unchanged recording, at the start of a stream. Other copies are
cut out of a stream of up to 40 s of utterances with pauses, so that most have other speech before them and any block
phase: the encoder's states change with the time since the start of a stream (for about 15 s), and a decoder has to
learn both. In training these copies have random level, noise and telephone band (`augment.py`). The folder's
encoder.json names the checkpoint and the sizes. A run that was stopped continues with the next shard.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from augment import augmented, finished, noise
from label import FORMATTED, formatted, readings
from moonshine import FIELD, HOP, RATE, Encoder, Shape, frames_of, mixed_precision
from optimisation import updates_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from speech import LABELS, RUNS, Utterance, batches, fixed_subset, levelled, padded, read_manifest, samples_of
from torch import Tensor

Line = dict[str, Any]  # of an index: id, copy, key, file, frames, corpus, text

FOLDER = RUNS / "cache"
SHARD = 256
SIZE = (10.32, 0.384, 0.384)
STREAM = 40.0  # seconds


def labelled() -> list[tuple[str, Utterance]]:
    """Training utterances with a final text (`label.py merge`), in a fixed random order, with their corpus."""
    path = LABELS / "train.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path}: not found; run `python recipes/english/label.py merge` first")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = {row["id"]: row["corpus"] for row in rows}
    fields = Utterance.__dataclass_fields__
    found = [Utterance(**{**{f: row[f] for f in fields}, "audio": Path(row["audio"])}) for row in rows]
    return [(names[u.id], u) for u in fixed_subset(found, len(found))]


def development(count: int) -> list[tuple[str, Utterance]]:
    """The first utterances of each development set in a fixed order, with tiny's formatting if it has read them."""
    found = []
    for corpus in ("librispeech", "commonvoice", "harpervalley"):
        read = readings(LABELS / f"{corpus}-dev-tiny.jsonl")
        for utterance in fixed_subset(read_manifest(corpus, "dev"), count):
            if corpus not in FORMATTED and utterance.id in read and utterance.text:
                utterance = replace(utterance, text=formatted(utterance.text, read[utterance.id]["text"]))
            found.append((corpus, utterance))
    return found


@torch.no_grad()
def states_of(encoder: Encoder, rows: Sequence[np.ndarray], shape: Shape) -> list[Tensor]:
    """Streaming states of some recordings, each a separate stream."""
    samples, lengths = padded(rows)
    front, _ = encoder.front(samples)
    frames = torch.tensor([frames_of(int(n)) for n in lengths])
    with mixed_precision():
        states = encoder.blocks(front, shape, torch.arange(front.shape[1]) < frames[:, None])
    return [states[i, :n].half() for i, n in enumerate(frames.tolist())]


def streams(utterances: Sequence[Utterance], rng: np.random.Generator) -> Iterator[list[Utterance]]:
    """Utterances in random order, in groups of up to 40 s."""
    stream: list[Utterance] = []
    for i in rng.permutation(len(utterances)):
        if stream and sum(u.seconds for u in stream) + utterances[i].seconds > STREAM:
            yield stream
            stream = []
        stream.append(utterances[i])
    if stream:
        yield stream


def in_stream(
    encoder: Encoder, shape: Shape, stream: Sequence[Utterance], rng: np.random.Generator, change: bool
) -> list[Tensor]:
    """States of each utterance of one stream."""
    parts, places, place = [], [], 0
    for utterance in stream:
        samples = levelled(samples_of(utterance))
        samples = augmented(samples, rng) if change else samples
        pause = np.zeros(int(rng.exponential(0.5) * RATE) + -len(samples) % HOP, np.float32)
        pause = pause[: (len(samples) + len(pause)) // HOP * HOP - len(samples)]
        places.append((place // HOP, frames_of(len(samples))))
        parts += [samples, pause]
        place += len(samples) + len(pause)
    row = np.concatenate(parts)
    row = finished(row + noise(len(row), rng) * np.float32(1e-4), rng) if change else row
    states = states_of(encoder, [np.pad(row, (0, FIELD))], shape)[0]
    return [states[first : first + count].clone() for first, count in places]


def write_shard(
    encoder: Encoder, shape: Shape, utterances: Sequence[Utterance], path: Path, change: bool
) -> list[Line]:
    """States of one shard; returns the lines of its index."""
    number, copy = (int(part) for part in path.stem.split("-"))
    rng, found = np.random.default_rng([copy, number]), list[tuple[Utterance, Tensor]]()
    if copy:
        for stream in streams(utterances, rng):
            found += zip(stream, in_stream(encoder, shape, stream, rng, change), strict=True)
    else:
        for batch in batches(utterances, 120.0, 24):
            found += zip(batch, states_of(encoder, [samples_of(u) for u in batch], shape), strict=True)
    save_file({f"{u.id}#{copy}": states for u, states in found}, path)
    line = {"copy": copy, "file": path.name}
    return [{"id": u.id, "key": f"{u.id}#{copy}", "frames": len(states), **line} for u, states in found]


def write(
    name: str, checkpoint: Path | None, chosen: Sequence[tuple[str, Utterance]], copies: int, hours: float
) -> None:
    """Write all missing shards of a cache."""
    folder, shape, encoder = FOLDER / name, Shape.of(*SIZE), Encoder.pretrained().eval()
    folder.mkdir(parents=True, exist_ok=True)
    description = {"checkpoint": str(checkpoint), "size": SIZE, "updates": 0}
    if checkpoint is not None:
        encoder.load_state_dict(load_file(checkpoint / "model.safetensors"))
        description["updates"] = updates_of(checkpoint)
    (folder / "encoder.json").write_text(json.dumps(description))
    corpora = {u.id: (corpus, u.text) for corpus, u in chosen}
    index, began, processed = folder / "index.jsonl", time.monotonic(), 0.0
    done = {(row["file"]) for row in read_index(name)}
    for start in range(0, len(chosen), SHARD):
        part = [u for _, u in chosen[start : start + SHARD]]
        if processed > 3600 * hours:
            break
        processed += sum(u.seconds for u in part)
        for copy in range(copies) if copies > 1 else [start // SHARD % 2]:
            path = folder / f"{start // SHARD:05d}-{copy}.safetensors"
            if path.name in done:
                continue
            lines = write_shard(encoder, shape, part, path, name.startswith("train"))
            with index.open("a") as out:
                for line in lines:
                    corpus, text = corpora[line["id"]]
                    out.write(json.dumps(line | {"corpus": corpus, "text": text}, ensure_ascii=False) + "\n")
        print(f"{name}: {processed / 3600:.2f} h, {(time.monotonic() - began) / processed:.3f} x real time", flush=True)


def read_index(name: str) -> list[Line]:
    """Lines of a cache's index: id, copy, key, file, frames, corpus, text."""
    path = FOLDER / name / "index.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


class States:
    """Random access to the states of a cache."""

    def __init__(self, name: str) -> None:
        self.folder, self._open = FOLDER / name, dict[str, Any]()

    def __call__(self, row: Line) -> Tensor:
        file = row["file"]
        if file not in self._open:
            self._open[file] = safe_open(self.folder / file, "pt")
        return self._open[file].get_tensor(row["key"]).float()


def length_batches(rows: Sequence[Line], frames: int, rng: np.random.Generator) -> Iterator[list[Line]]:
    """One pass in batches of similar length, at most `frames` with padding, in random order."""
    ordered = sorted(rows, key=lambda row: row["frames"] * rng.uniform(0.9, 1.1))
    found: list[list[Line]] = [[]]
    for row in ordered:
        if found[-1] and max(r["frames"] for r in (*found[-1], row)) * (len(found[-1]) + 1) > frames:
            found.append([])
        found[-1].append(row)
    for i in rng.permutation(len(found)):
        yield found[i]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "dev"])
    parser.add_argument(
        "--checkpoint", type=Path, help="folder with model.safetensors (default: the untrained encoder)"
    )
    parser.add_argument("--name", help="folder under runs/english/cache (default: train or dev)")
    parser.add_argument("--copies", type=int, default=2, help="1: each shard once, alternately copy 0 and copy 1")
    parser.add_argument("--hours", type=float, default=1000.0)
    parser.add_argument("--utterances", type=int, default=100, help="of each development set")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = labelled() if arguments.part == "train" else development(arguments.utterances)
    write(arguments.name or arguments.part, arguments.checkpoint, chosen, arguments.copies, arguments.hours)


if __name__ == "__main__":
    main()
