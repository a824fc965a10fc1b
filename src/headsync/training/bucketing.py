"""Which utterances or sentences form a batch (of similar length, within a budget), and which process computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from headsync.corpora.manifest import Utterance

FRAMES_PER_SECOND = 100  # unit of training.batch_frames, for all features
SHARDS_AT_ONCE = 8  # whose utterances are mixed with each other
P = TypeVar("P")


class Share(NamedTuple, Generic[P]):
    """The share of a batch that one process computes, in one part or several."""

    parts: list[P]
    weights: list[float]  # the share of each part in the mean loss of the whole batch
    size: int  # feature frames or tokens of these parts


class Split(NamedTuple):
    """How a batch is divided among processes, and by each of them into parts."""

    rank: int = 0
    processes: int = 1
    parts: int = 1

    def rows(self, rows: Sequence[int]) -> list[list[int]]:
        """The rows of each non-empty part of this process; rows of similar length are spread over all parts."""
        every = self.processes * self.parts
        return [part for n in range(self.parts) if (part := list(rows[self.rank + n * self.processes :: every]))]

    def weighted(
        self, rows: Sequence[int], count: Callable[[Sequence[int]], int]
    ) -> tuple[list[list[int]], list[float]]:
        """The rows and the weight of each part, by `count`; a process without rows gets one row of weight 0."""
        parts = self.rows(rows)
        return (parts, [count(part) / count(rows) for part in parts]) if parts else ([list(rows[:1])], [0.0])


WHOLE = Split()


def at_speeds(utterances: Sequence[Utterance], speeds: Sequence[float]) -> list[Utterance]:
    return [replace(u, seconds=u.seconds / speed, speed=speed) for speed in speeds for u in utterances]


def plan(utterances: Sequence[Utterance], batch_frames: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch as lists of indices: similar lengths, at most `batch_frames` with padding."""
    seconds = np.array([u.seconds for u in utterances])
    return grouped(seconds, seconds * FRAMES_PER_SECOND, batch_frames, (seed, epoch))


def plan_shards(
    utterances: Sequence[Utterance], batch_frames: int, seed: int, epoch: int, at_once: int = SHARDS_AT_ONCE
) -> list[list[int]]:
    """The same for shards: `at_once` of them are mixed, in a new order every epoch, and each is read once."""
    shards: dict[str, list[int]] = {}
    for index, utterance in enumerate(utterances):
        shards.setdefault(str(utterance.audio), []).append(index)
    order = np.random.default_rng([seed, epoch, 1]).permutation(sorted(shards)).tolist()
    batches = []
    for first in range(0, len(order), at_once):
        near = sorted(index for name in order[first : first + at_once] for index in shards[name])
        rows = plan([utterances[index] for index in near], batch_frames, seed, epoch)
        batches += [[near[row] for row in batch] for batch in rows]
    return batches


def grouped(lengths: npt.NDArray[Any], costs: npt.NDArray[Any], budget: float, seeds: Sequence[int]) -> list[list[int]]:
    """Batches as lists of indices: similar lengths; the largest cost times the rows is within the budget."""
    rng = np.random.default_rng(list(seeds))
    order = np.argsort(lengths * rng.uniform(0.9, 1.1, len(lengths)), kind="stable")  # new neighbours every epoch
    batches: list[list[int]] = [[]]
    largest = 0.0
    for index in order.tolist():
        largest = max(largest, float(costs[index]))
        if batches[-1] and largest * (len(batches[-1]) + 1) > budget:
            batches.append([])
            largest = float(costs[index])
        batches[-1].append(index)
    return [batches[i] for i in rng.permutation(len(batches))]
