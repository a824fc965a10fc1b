"""Batches from manifests or shards: utterances of similar length, limited by their total frames.

The batches of an epoch are a pure function of corpus, seed and epoch, so a resumed run continues with exactly the batch
that would have come next. One update uses one batch; several processes divide its rows, in one part or several.

Shapes: B rows, T feature frames, F features, L output steps.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import soundfile
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from headsync.config import TrainingConfig
from headsync.corpora.manifest import Utterance
from headsync.corpora.shards import in_shard, read_members
from headsync.errors import AudioError, DataError, HeadsyncError
from headsync.frontend.audio import FloatArray, mix_down, read_audio, resample
from headsync.frontend.features import Features, Statistics, normalise
from headsync.frontend.frame_rate import LOG_MEL, SAMPLE_RATE, FrameRate
from headsync.frontend.waveform import AnyFeatures, Waveform
from headsync.text.vocabulary import Vocabulary
from headsync.training.bucketing import WHOLE, Share, Split
from headsync.training.spec_augment import augmented

PADDING = -100  # in targets: no output step here
ENERGIES = Features()


class Batch(NamedTuple):
    features_BTF: Tensor
    lengths_B: Tensor
    tokens_BL: Tensor  # <sos> and the tokens
    targets_BL: Tensor  # the tokens and <eos>, followed by PADDING

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class StoredFrames(Protocol):
    """Encoder frames that were computed before."""

    def read(self, utterance: Utterance) -> FloatArray: ...


def features_of(utterance: Utterance, features: AnyFeatures, sound: bytes | None = None) -> FloatArray:
    """The features of a recording of any rate and number of channels; `sound` is its content, if already read.

    A higher speed declares a higher sampling rate, which raises the pitch as well.
    """
    samples, rate = read_audio(utterance.audio) if sound is None else _decoded(sound, utterance.id)
    return features.whole(resample(mix_down(samples), round(rate * utterance.speed)))


def _decoded(sound: bytes, name: str) -> tuple[FloatArray, int]:
    try:
        samples, rate = soundfile.read(io.BytesIO(sound), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f"{name}: its audio in the shard cannot be read ({error.error_string}); prepare the shards again."
        ) from None
    return samples, rate


def statistics_of(utterances: Sequence[Utterance], features: AnyFeatures, most: int = 1000) -> Statistics:
    """Global mean and deviation, from at most about `most` utterances, evenly selected; samples are not normalised."""
    if isinstance(features, Waveform):
        return Statistics.identity(features.rate.window)
    stride = max(1, len(utterances) // most)
    chosen = utterances[::stride]
    sounds = read_members(chosen)
    return Statistics.of(features_of(u, features, sounds.get(u.id)) for u in chosen)


def usable(
    utterances: Sequence[Utterance], vocabulary: Vocabulary, rate: FrameRate = LOG_MEL
) -> tuple[list[Utterance], list[Utterance]]:
    """The utterances that CTC can align, and those with too few frames for their text."""
    fit: list[Utterance] = []
    short: list[Utterance] = []
    for utterance in utterances:
        tokens = vocabulary.encode(utterance.text)
        repeats = sum(a == b for a, b in itertools.pairwise(tokens))
        frames = rate.embedded(rate.features(round(utterance.seconds * SAMPLE_RATE)))
        (fit if frames >= max(1, len(tokens) + repeats) else short).append(utterance)
    return fit, short


class Batches(Dataset[Batch]):
    """Batches by number; each is made in the worker process that requests it."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        vocabulary: Vocabulary,
        statistics: Statistics,
        rows: Sequence[Sequence[int]],
        augment: tuple[TrainingConfig, int] | None = None,  # settings and epoch
        features: AnyFeatures = ENERGIES,
        frames: StoredFrames | None = None,  # encoder frames, in place of features
    ) -> None:
        self.utterances, self.vocabulary, self.statistics = utterances, vocabulary, statistics
        self.rows, self.augment, self.features, self.frames = rows, augment, features, frames

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Batch:
        return self.make(self.rows[number])

    def make(self, rows: Sequence[int], sounds: Mapping[str, bytes] | None = None) -> Batch:
        """The batch of these rows; `sounds` is the audio of rows in shards."""
        features = [self._features(index, (sounds or {}).get(self.utterances[index].id)) for index in rows]
        return collate(features, [self._tokens(index) for index in rows], self.vocabulary.end)

    def share(self, number: int, split: Split, sounds: Mapping[str, bytes] | None = None) -> Share[Batch]:
        """The part of a batch that one process computes."""
        parts, weights = split.weighted(self.rows[number], self._count)
        made = [self.make(part, sounds) for part in parts]
        frames = sum(int(part.lengths_B.sum()) for part in made)
        return Share(made, weights, frames)

    def _count(self, rows: Sequence[int]) -> int:
        """The number of items in the mean of the loss: utterances, or output steps, <eos> included."""
        if self.augment and self.augment[0].loss_per == "utterance":
            return len(rows)
        return sum(len(self._tokens(index)) + 1 for index in rows)

    def _tokens(self, index: int) -> list[int]:
        return self.vocabulary.encode(self.utterances[index].text)

    def _features(self, index: int, sound: bytes | None) -> FloatArray:
        if self.frames is not None:
            return self.frames.read(self.utterances[index])
        features = normalise(features_of(self.utterances[index], self.features, sound), self.statistics)
        if self.augment is None:
            return features
        config, epoch = self.augment
        return augmented(features, config, np.random.default_rng([config.seed, epoch, index]))


def collate(features: Sequence[FloatArray], tokens: Sequence[Sequence[int]], end: int) -> Batch:
    """Rows of unequal length to padded tensors."""
    lengths = torch.tensor([len(f) for f in features])
    padded = torch.zeros(len(features), int(lengths.max()), features[0].shape[1])
    for row, f in enumerate(features):
        padded[row, : len(f)] = torch.from_numpy(f)
    return Batch(padded, lengths, *inputs_and_targets(tokens, end))


def inputs_and_targets(texts: Sequence[npt.ArrayLike], end: int) -> tuple[Tensor, Tensor]:
    """Texts of unequal length as padded tensors: <sos> and the tokens, and the tokens and <eos>."""
    rows = [torch.from_numpy(np.asarray(text, np.int64)) for text in texts]
    steps = max(len(row) for row in rows) + 1
    inputs, targets = torch.full((len(rows), steps), end), torch.full((len(rows), steps), PADDING)
    for number, row in enumerate(rows):
        inputs[number, 1 : len(row) + 1] = targets[number, : len(row)] = row
        targets[number, len(row)] = end
    return inputs, targets


def load(batches: Batches, first: int, workers: int, split: Split = WHOLE) -> Iterator[Share[Batch]]:
    """This process's shares of the batches from number `first` on, prepared ahead by worker processes."""
    loader = DataLoader(
        _Shares(batches, split), batch_size=None, sampler=_Orders(batches, first, split), num_workers=workers,
        prefetch_factor=4 if workers else None,
    )  # fmt: skip
    for made in loader:
        if isinstance(made, HeadsyncError):
            raise made
        yield made


_Order = tuple[int, dict[str, bytes]]  # the number of a share, and its audio that is in shards


class _Orders:
    """The orders of an epoch; each process reads only its own rows from the shards, and each shard once."""

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
            yield number, {u.id: waiting[u.id] for u in needed}

    def _utterances(self, number: int) -> list[Utterance]:
        """The utterances of a share whose audio is in shards."""
        parts, _ = self.split.weighted(self.batches.rows[number], len)
        found = [self.batches.utterances[index] for part in parts for index in part]
        return [u for u in found if in_shard(u) and self.batches.frames is None]

    def _until_other_shards(self, first: int) -> list[Utterance]:
        """This process's utterances in the group of shards that begins with this batch."""
        wanted: list[Utterance] = []
        number, end = first, first + 1
        while number < end:
            end = max([end, *(self._ends[self.batches.utterances[row].audio] for row in self.batches.rows[number])])
            wanted += self._utterances(number)
            number += 1
        return wanted

    @cached_property
    def _ends(self) -> dict[Path, int]:
        """For each shard, the number after its last batch."""
        utterances = self.batches.utterances
        return {utterances[row].audio: number + 1 for number in self.numbers for row in self.batches.rows[number]}


class _Shares(Dataset[Share[Batch] | HeadsyncError]):
    """Shares by order. An error is returned, not raised: a worker would turn it into a traceback inside a message."""

    def __init__(self, batches: Batches, split: Split) -> None:
        self.batches, self.split = batches, split

    def __getitem__(self, order: _Order | HeadsyncError) -> Share[Batch] | HeadsyncError:
        if isinstance(order, HeadsyncError):
            return order
        try:
            number, sounds = order
            return self.batches.share(number, self.split, sounds)
        except HeadsyncError as error:
            return error


def check_not_empty(utterances: Sequence[Utterance], name: str) -> None:
    if not utterances:
        raise DataError(f"{name}: no usable utterance; check data.train and data.dev of the recipe")
