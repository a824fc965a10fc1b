"""Manifests to batches: utterances of like length together, by total frames, reproducible by seed and epoch.

The batches of an epoch are a pure function of manifest, seed and epoch, so that a run that was stopped goes on with
exactly the batch that would have come next.

Shapes: B rows, T feature frames, F features, L output steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from headsync.audio import FloatArray, mix_down, read_audio, resample
from headsync.config import TrainingConfig
from headsync.data.manifest import Utterance
from headsync.errors import DataError, HeadsyncError
from headsync.features import Statistics, log_mel, normalise
from headsync.framing import embedded_frames
from headsync.tokens import Vocabulary
from headsync.train.augment import mask

PADDING = -100  # in targets: no output step here
FRAMES_PER_SECOND = 100


class Batch(NamedTuple):
    """One update's worth of utterances."""

    features_BTF: Tensor
    lengths_B: Tensor
    tokens_BL: Tensor  # <sos> and the tokens
    targets_BL: Tensor  # the tokens and <eos>; PADDING behind


def features_of(audio: Path) -> FloatArray:
    """Log-mel frames of a recording, of any rate and number of channels."""
    samples, rate = read_audio(audio)
    return log_mel(resample(mix_down(samples), rate))


def statistics_of(utterances: Sequence[Utterance], most: int = 1000) -> Statistics:
    """Global mean and deviation, over an even selection where there are very many."""
    stride = max(1, len(utterances) // most)
    return Statistics.of(features_of(u.audio) for u in utterances[::stride])


def usable(utterances: Sequence[Utterance], vocabulary: Vocabulary) -> tuple[list[Utterance], list[Utterance]]:
    """Those that CTC can align, and those too short for their text."""
    fit: list[Utterance] = []
    short: list[Utterance] = []
    for utterance in utterances:
        tokens = vocabulary.encode(utterance.text)
        repeats = sum(a == b for a, b in itertools.pairwise(tokens))
        frames = embedded_frames(round(utterance.seconds * FRAMES_PER_SECOND) - 2)
        (fit if frames >= max(1, len(tokens) + repeats) else short).append(utterance)
    return fit, short


def plan(
    utterances: Sequence[Utterance], batch_frames: int, seed: int, epoch: int, shortest_first: bool = False
) -> list[list[int]]:
    """The batches of an epoch as lists of indices: neighbours in length, no more than `batch_frames` with padding."""
    rng = np.random.default_rng([seed, epoch])
    seconds = np.array([u.seconds for u in utterances])
    order = np.argsort(seconds * rng.uniform(0.9, 1.1, len(seconds)), kind="stable")  # other neighbours every epoch
    batches: list[list[int]] = []
    batch: list[int] = []
    longest = 0.0
    for index in order:
        longest = max(longest, seconds[index])
        if batch and longest * FRAMES_PER_SECOND * (len(batch) + 1) > batch_frames:
            batches.append(batch)
            batch, longest = [], float(seconds[index])
        batch.append(int(index))
    batches.append(batch)
    return batches if shortest_first else [batches[i] for i in rng.permutation(len(batches))]


class Batches(Dataset[Batch]):
    """Batches by number, each made where it is asked for (a worker process)."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        vocabulary: Vocabulary,
        statistics: Statistics,
        rows: Sequence[Sequence[int]],
        augment: tuple[TrainingConfig, int] | None = None,  # settings and epoch
    ) -> None:
        self.utterances, self.vocabulary, self.statistics = utterances, vocabulary, statistics
        self.rows, self.augment = rows, augment

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Batch:
        rows = [self._features(index) for index in self.rows[number]]
        texts = [self.vocabulary.encode(self.utterances[index].text) for index in self.rows[number]]
        return collate(rows, texts, self.vocabulary.end)

    def _features(self, index: int) -> FloatArray:
        features = normalise(features_of(self.utterances[index].audio), self.statistics)
        if self.augment is None:
            return features
        config, epoch = self.augment
        return mask(features, config, np.random.default_rng([config.seed, epoch, index]))


def collate(features: Sequence[FloatArray], tokens: Sequence[Sequence[int]], end: int) -> Batch:
    """Rows of unequal length to padded tensors."""
    lengths = torch.tensor([len(f) for f in features])
    padded = torch.zeros(len(features), int(lengths.max()), features[0].shape[1])
    steps = max(len(t) for t in tokens) + 1
    inputs = torch.full((len(tokens), steps), end)
    targets = torch.full((len(tokens), steps), PADDING)
    for row, (f, t) in enumerate(zip(features, tokens, strict=True)):
        padded[row, : len(f)] = torch.from_numpy(f)
        inputs[row, 1 : len(t) + 1] = torch.tensor(t, dtype=torch.long)
        targets[row, : len(t) + 1] = torch.tensor([*t, end])
    return Batch(padded, lengths, inputs, targets)


def load(batches: Batches, first: int, workers: int) -> Iterator[Batch]:
    """Batches from number `first` on, prepared ahead by worker processes."""
    loader = DataLoader(
        _Told(batches), batch_size=None, sampler=range(first, len(batches)), num_workers=workers,
        prefetch_factor=4 if workers else None,
    )  # fmt: skip
    for made in loader:
        if isinstance(made, HeadsyncError):
            raise made
        yield made


class _Told(Dataset[Batch | HeadsyncError]):
    """Errors as values: raised in a worker process, they would come back as a traceback inside a message."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, number: int) -> Batch | HeadsyncError:
        try:
            return self.batches[number]
        except HeadsyncError as error:
            return error


def check_not_empty(utterances: Sequence[Utterance], name: str) -> None:
    """A manifest without utterances is a mistake that should be met before an hour has passed."""
    if not utterances:
        raise DataError(f"{name}: no utterance to work on; check data.train and data.dev of the recipe")
