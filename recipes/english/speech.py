"""Manifests and audio of the English recipe, and utterances in batches of similar length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile as sf
import torch
from torch import Tensor

RUNS = Path(__file__).resolve().parents[2] / "runs/english"
DATA, LABELS = RUNS / "data", RUNS / "labels"
RATE = 16_000
PEAK = 0.5  # of the teachers' input


@dataclass(frozen=True)
class Utterance:
    """One line of a manifest; `audio` is absolute."""

    id: str
    audio: Path
    seconds: float
    speaker: str
    text: str | None
    source: str
    licence: str


def read_manifest(corpus: str, split: str) -> list[Utterance]:
    """The utterances of DATA/CORPUS/SPLIT.jsonl."""
    path = DATA / corpus / f"{split}.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path}: not found; run `python recipes/english/corpora.py {corpus}` first")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Utterance(**{**row, "audio": path.parent / row["audio"]}) for row in rows]


def has_manifest(corpus: str, split: str = "train") -> bool:
    """Whether `corpora.py` has extracted this part."""
    return (DATA / corpus / f"{split}.jsonl").is_file()


def samples_of(utterance: Utterance) -> np.ndarray:
    """Samples of an utterance as recorded."""
    samples, rate = sf.read(utterance.audio, dtype="float32")
    if rate != RATE:
        raise SystemExit(f"{utterance.audio}: {rate} Hz instead of {RATE}")
    return samples


def levelled(samples: np.ndarray) -> np.ndarray:
    """Samples with a peak of PEAK, the teachers' input."""
    return samples * (PEAK / max(float(np.abs(samples).max()), 1e-5))


def padded(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Rows of samples in one tensor, and their lengths."""
    lengths = torch.tensor([len(row) for row in rows])
    batch = torch.zeros(len(rows), int(lengths.max()))
    for i, row in enumerate(rows):
        batch[i, : len(row)] = torch.from_numpy(row)
    return batch, lengths


def batches(utterances: Sequence[Utterance], seconds: float, most: int = 48) -> Iterator[list[Utterance]]:
    """Batches of utterances of similar length, at most `seconds` with padding and `most` rows."""
    batch: list[Utterance] = []
    for utterance in sorted(utterances, key=lambda u: u.seconds):
        if batch and (utterance.seconds * (len(batch) + 1) > seconds or len(batch) == most):
            yield batch
            batch = []
        batch.append(utterance)
    if batch:
        yield batch


def fixed_subset(utterances: Sequence[Utterance], count: int) -> list[Utterance]:
    """The same random subset in every run."""
    return sorted(utterances, key=lambda u: hashlib.sha256(f"subset {u.id}".encode()).hexdigest())[:count]
