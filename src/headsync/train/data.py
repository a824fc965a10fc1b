"""Manifests or shards to batches: utterances of like length together, by total frames, reproducible by seed and epoch.

The batches of an epoch are a pure function of the corpus, seed and epoch, so that a run that was stopped goes on with
exactly the batch that would have come next. A batch is what one update learns from, however many processes share it:
each takes its share of the rows, in one part or several.

Shapes: B rows, T feature frames, F features, L output steps.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from headsync.audio import FloatArray, mix_down, read_audio, resample
from headsync.config import TrainingConfig
from headsync.data.manifest import Utterance
from headsync.data.shards import in_shard, read_members
from headsync.errors import AudioError, DataError, HeadsyncError
from headsync.features import Features, Statistics, normalise
from headsync.framing import embedded_frames
from headsync.tokens import Vocabulary
from headsync.train.augment import mask
from headsync.train.plan import FRAMES_PER_SECOND, WHOLE, Split
from headsync.train.teacher import Teacher

PADDING = -100  # in targets: no output step here
NO_STATES = torch.empty(0)
ENERGIES = Features()


class Batch(NamedTuple):
    """Rows that go through the network together."""

    features_BTF: Tensor
    lengths_B: Tensor
    tokens_BL: Tensor  # <sos> and the tokens
    targets_BL: Tensor  # the tokens and <eos>; PADDING behind
    states_BTD: Tensor = NO_STATES  # a teacher's, by encoder frames; NaN where it has none
    readings_BTV: Tensor = NO_STATES  # the logarithms of what it reads there

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class Share(NamedTuple):
    """What one process has of an update's batch."""

    parts: list[Batch]
    weights: list[float]  # the share of each part in the output steps of the whole batch

    @classmethod
    def whole(cls, batch: Batch) -> Share:
        return cls([batch], [1.0])


def features_of(utterance: Utterance, features: Features, sound: bytes | None = None) -> FloatArray:
    """The features of a recording, of any rate and number of channels; of its bytes, where they have been read.

    A recording is made faster by taking it for one of a higher rate, which makes its voice higher as well.
    """
    samples, rate = read_audio(utterance.audio) if sound is None else _decoded(sound, utterance.id)
    return features.whole(resample(mix_down(samples), round(rate * utterance.speed)))


def _decoded(sound: bytes, name: str) -> tuple[FloatArray, int]:
    try:
        samples, rate = soundfile.read(io.BytesIO(sound), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{name}: its sound in the shard cannot be read ({error.error_string}).") from None
    return samples, rate


def statistics_of(utterances: Sequence[Utterance], features: Features, most: int = 1000) -> Statistics:
    """Global mean and deviation, over an even selection where there are very many."""
    stride = max(1, len(utterances) // most)
    chosen = utterances[::stride]
    sounds = read_members(chosen)
    return Statistics.of(features_of(u, features, sounds.get(u.id)) for u in chosen)


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


class Batches(Dataset[Batch]):
    """Batches by number, each made where it is asked for (a worker process)."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        vocabulary: Vocabulary,
        statistics: Statistics,
        rows: Sequence[Sequence[int]],
        augment: tuple[TrainingConfig, int] | None = None,  # settings and epoch
        features: Features = ENERGIES,
        teacher: Teacher | None = None,
    ) -> None:
        self.utterances, self.vocabulary, self.statistics = utterances, vocabulary, statistics
        self.rows, self.augment, self.features, self.teacher = rows, augment, features, teacher

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Batch:
        return self.make(self.rows[number])

    def make(self, rows: Sequence[int], sounds: Mapping[str, bytes] | None = None) -> Batch:
        """The batch of these rows; what is in shards has been read before."""
        features = [self._features(index, (sounds or {}).get(self.utterances[index].id)) for index in rows]
        batch = collate(features, [self._tokens(index) for index in rows], self.vocabulary.end)
        if self.teacher is None:
            return batch
        taught = [self.utterances[index] for index in rows], features
        return batch._replace(states_BTD=self.teacher.together(*taught), readings_BTV=self.teacher.read(*taught))

    def share(self, number: int, split: Split, sounds: Mapping[str, bytes] | None = None) -> Share:
        """The rows of a batch that one process works on; it has at least one, which then counts for nothing."""
        rows = self.rows[number]
        parts = split.rows(rows)
        if len(parts) == 1 and len(parts[0]) == len(rows):
            return Share.whole(self.make(rows, sounds))
        steps = [[len(self._tokens(index)) + 1 for index in part] for part in (rows, *parts)]
        weights = [sum(part) / sum(steps[0]) for part in steps[1:]]
        if not parts:
            parts, weights = [[rows[0]]], [0.0]
        return Share([self.make(part, sounds) for part in parts], weights)

    def _tokens(self, index: int) -> list[int]:
        return self.vocabulary.encode(self.utterances[index].text)

    def _features(self, index: int, sound: bytes | None) -> FloatArray:
        features = normalise(features_of(self.utterances[index], self.features, sound), self.statistics)
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


def load(batches: Batches, first: int, workers: int, split: Split = WHOLE) -> Iterator[Share]:
    """This process's shares of the batches from number `first` on, prepared ahead by worker processes."""
    loader = DataLoader(
        _Told(batches, split), batch_size=None, sampler=_Orders(batches, first, split), num_workers=workers,
        prefetch_factor=4 if workers else None,
    )  # fmt: skip
    for made in loader:
        if isinstance(made, HeadsyncError):
            raise made
        yield made


class _Order(NamedTuple):
    """What a worker needs to make a share: its number, and the sounds that are not files of their own."""

    number: int
    sounds: dict[str, bytes]


class _Orders:
    """Orders in their order; of shards each process reads what it needs, from their beginnings to their ends."""

    def __init__(self, batches: Batches, first: int, split: Split) -> None:
        self.batches, self.numbers, self.split = batches, range(first, len(batches)), split

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[_Order | HeadsyncError]:
        waiting: dict[str, bytes] = {}
        for number in self.numbers:
            needed = self._utterances(number)
            if any(u.id not in waiting for u in needed):
                try:
                    waiting = read_members(self._until_other_shards(number))
                except HeadsyncError as error:
                    yield error
                    return
            yield _Order(number, {u.id: waiting[u.id] for u in needed})

    def _utterances(self, number: int) -> list[Utterance]:
        """Those of a share whose sounds lie in shards."""
        rows = self.batches.rows[number]
        mine = self.split.rows(rows) or [list(rows[:1])]
        found = [self.batches.utterances[index] for part in mine for index in part]
        return [u for u in found if in_shard(u)]

    def _until_other_shards(self, first: int) -> list[Utterance]:
        """All that this process needs of the shards that are mixed with each other from this batch on."""
        wanted: list[Utterance] = []
        number, end = first, first + 1
        while number < end:
            end = max([end, *(self._ends[self.batches.utterances[row].audio] for row in self.batches.rows[number])])
            wanted += self._utterances(number)
            number += 1
        return wanted

    @cached_property
    def _ends(self) -> dict[Path, int]:
        """For each shard the number behind the last batch that has some of it."""
        utterances = self.batches.utterances
        return {utterances[row].audio: number + 1 for number in self.numbers for row in self.batches.rows[number]}


class _Told(Dataset[Share | HeadsyncError]):
    """Errors as values: raised in a worker process, they would come back as a traceback inside a message."""

    def __init__(self, batches: Batches, split: Split) -> None:
        self.batches, self.split = batches, split

    def __getitem__(self, order: _Order | HeadsyncError) -> Share | HeadsyncError:
        if isinstance(order, HeadsyncError):
            return order
        try:
            return self.batches.share(order.number, self.split, order.sounds)
        except HeadsyncError as error:
            return error


def check_not_empty(utterances: Sequence[Utterance], name: str) -> None:
    """A manifest without utterances is a mistake that should be met before an hour has passed."""
    if not utterances:
        raise DataError(f"{name}: no utterance to work on; check data.train and data.dev of the recipe")
