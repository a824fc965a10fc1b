"""Small fake engines in numpy, for tests of the search and the streams."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import Decoded, IntArray, Memory, State, Window


def nothing_heard(frames: int) -> Memory:
    """An empty memory, for engines that do not use it."""
    empty = np.zeros((1, 1, 2, frames, 1), np.float32)
    return Memory(empty, empty)


def _decided(end: int, limit: int, frames: int, final: bool) -> bool:
    return end <= min(limit, frames) or frames >= limit or final


class TableEngine:
    """Scores drawn at random for each prefix and each pair of frames at which its two heads halt."""

    def __init__(self, seed: int, classes: int = 5, end_bonus: float = 0.0) -> None:
        self.seed, self.classes, self.end_bonus = seed, classes, end_bonus
        self.asked: list[Window] = []

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        return (np.zeros((batch, 0), np.int64),)

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        self.asked.append(window)
        assert len(self.asked) < 10_000, "the search goes round in circles"
        prefixes = np.concatenate([state[0], tokens_B[:, None]], 1)
        rows = [self._row(*row, memory.keys_BNHTD.shape[3]) for row in zip(prefixes, *window, strict=True)]
        log_p, ends, ready = zip(*rows, strict=True)
        no_weights = np.zeros((len(rows), memory.keys_BNHTD.shape[3]), np.float32)
        return Decoded(np.stack(log_p), np.stack(ends)[:, None], np.array(ready), no_weights, (prefixes,))

    def _row(self, prefix: IntArray, limit: int, frames: int, final: bool, held: int) -> tuple[IntArray, ...]:
        reach = min(limit, frames)
        assert held >= reach, "frames that may be looked at are missing"
        halts = np.random.default_rng([self.seed, *prefix]).integers(1, 6 + 3 * len(prefix), 2)
        ends = np.minimum(halts, reach)
        logits = np.random.default_rng([self.seed, *prefix, *ends]).normal(size=self.classes) * 2
        logits[-1] += self.end_bonus
        return logits - np.logaddexp.reduce(logits), ends, _decided(halts.max(), limit, frames, final)


class ReadingEngine:
    """Reads the text off the memory, whose keys are the token said in each frame or 0; then it prefers <eos>.

    The values of placed frames are their places, so that each must have been placed once, and rightly.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        return (np.zeros(batch, np.int64),)

    def place(self, memory: Memory, first: int) -> Memory:
        places = first + np.arange(memory.values_BNHTD.shape[3], dtype=np.float32)
        return memory._replace(values_BNHTD=memory.values_BNHTD + places[:, None])

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        assert (memory.values_BNHTD.flatten() == np.arange(memory.values_BNHTD.size)).all(), "frames out of place"
        said = memory.keys_BNHTD[0, 0, 0, :, 0].astype(int)
        log_p = np.full((len(tokens_B), self.classes), -9.0, np.float32)
        ends, ready = np.zeros((len(tokens_B), 1, 1), np.int64), np.zeros(len(tokens_B), bool)
        for row, (written, limit, frames, final) in enumerate(zip(state[0], *window, strict=True)):
            reach = min(limit, frames)
            places = np.flatnonzero(said[:reach])
            left = len(places) > written
            ends[row] = places[written] + 1 if left else reach
            log_p[row, said[places[written]] if left else -1] = -0.1
            ready[row] = left or _decided(limit, limit, frames, final)
        return Decoded(log_p, ends, ready, np.zeros((len(tokens_B), len(said)), np.float32), (state[0] + 1,))


def spoken(script: IntArray, end: int) -> tuple[np.ndarray, Memory]:
    """CTC scores and the memory of frames in which the tokens of a script are said (0: silence)."""
    log_ctc = np.full((len(script), end + 1), -9.0, np.float32)
    log_ctc[np.arange(len(script)), script] = -0.01
    keys = script.astype(np.float32)[None, None, None, :, None]
    return log_ctc, Memory(keys, np.zeros_like(keys))


def spikes_of(log_ctc_TV: np.ndarray) -> CtcSpikes:
    """Where the greedy CTC reading begins a token."""
    labels = [0, *log_ctc_TV.argmax(1).tolist()]
    frames = tuple(n for n, (before, label) in enumerate(pairwise(labels)) if label not in (0, before))
    return CtcSpikes(frames, tuple(labels[n + 1] for n in frames))


class Bigrams:
    """A language model whose state is the last token and the number of tokens."""

    def __init__(self, seed: int, classes: int) -> None:
        table = np.random.default_rng(seed).dirichlet(np.ones(classes - 1), size=(50, classes))
        self.log_p = np.pad(np.log(table), ((0, 0), (0, 0), (1, 0)), constant_values=-np.inf)
        self.asked = 0

    def start(self, batch: int) -> State:
        return (np.zeros(batch, np.int64),)

    def step(self, tokens_B: IntArray, state: State) -> tuple[np.ndarray, State]:
        self.asked += len(tokens_B)
        return self.log_p[state[0], tokens_B], (state[0] + 1,)
