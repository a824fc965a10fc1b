"""Live streams go through the network together.

`Batching` is an engine around an engine, called from as many threads as there are streams at work. Whoever finds the
network free runs it at once, so that a call that is alone waits for nothing. Calls that come meanwhile wait; then the
first of them takes all that fit to its own along, as the rows of one batch, and hands each its rows.

Which calls fit: windows of the encoder of one shape; steps of the decoder whose states can be joined: all of them with
ONNX Runtime, with PyTorch those after equally many tokens. Memories are padded with zeros to the longest; windows say
which frames exist. A row of a batch is what it would be alone, up to the rounding of sums.

Shapes as in `headsync.engine`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from headsync.audio import FloatArray
from headsync.engine import Decoded, Encoded, Engine, IntArray, Memory, State, Window
from headsync.search.step import join_rows
from headsync.streaming import take_rows

R = TypeVar("R")
Run: TypeAlias = Callable[[Sequence[Any]], list[Any]]  # the arguments of several calls to their outcomes

MOST_ROWS = 64
MOST_BYTES = 32 << 20  # of memories copied for one batch; beyond it copying costs more than the batch saves


class Call:
    """One stream's call, on its way through the network."""

    def __init__(self, run: Run, fits: Any, arguments: Any, size: tuple[int, int]) -> None:
        self.run, self.fits, self.arguments = run, fits, arguments
        self.rows, self.bytes = size
        self.woken = threading.Event()  # it is done, or it is this one's turn to run the network
        self.done = False
        self._outcome: Any = None
        self._error: Exception | None = None

    def end(self, outcome: Any, error: Exception | None = None) -> None:
        """The network has answered, or failed; whoever waits is told."""
        self._outcome, self._error, self.done = outcome, error, True
        self.woken.set()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._outcome


class Decoding(NamedTuple):
    """The arguments of a step."""

    tokens_B: IntArray
    memory: Memory
    state: State
    window: Window


class Encoding(NamedTuple):
    """The arguments of a window."""

    x_BWE: FloatArray
    length_B: IntArray
    state: State


class Batching:
    """An engine that joins the calls of several threads."""

    def __init__(self, inner: Engine, observe: Callable[[int, int], None] | None = None) -> None:
        self.inner = inner
        self.observe = observe  # told the calls of every batch, and how many are left
        self._lock = threading.Lock()  # around the two below
        self._waiting: list[Call] = []
        self._busy = False

    @property
    def waiting(self) -> int:
        """Calls that wait for the network."""
        return len(self._waiting)

    def embed(self, features_BTF: FloatArray) -> FloatArray:
        shape = ("embed", features_BTF.shape[1:], features_BTF.dtype)
        return self._ask(Call(self._embed, shape, features_BTF, (len(features_BTF), 0)))  # type: ignore[no-any-return]

    def start_encoder(self, batch: int) -> State:
        return self.inner.start_encoder(batch)

    def encode(self, x_BWE: FloatArray, length_B: IntArray, state: State) -> Encoded:
        arguments = Encoding(x_BWE, length_B, state)
        return self._ask(Call(self._encode, ("encode", _shape(arguments)), arguments, (len(x_BWE), 0)))  # type: ignore[no-any-return]

    def place(self, memory: Memory, first: int) -> Memory:
        return self.inner.place(memory, first)

    def start_decoder(self, batch: int) -> State:
        return self.inner.start_decoder(batch)

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        rows = len(tokens_B)
        size = rows, rows * sum(part.nbytes // len(part) for part in memory)
        arguments = Decoding(tokens_B, memory, state, window)
        return self._ask(Call(self._decode, ("decode", _shape(state)), arguments, size))  # type: ignore[no-any-return]

    def _ask(self, call: Call) -> Any:
        with self._lock:
            self._waiting.append(call)
            turn, self._busy = not self._busy, True
        if not turn:
            call.woken.wait()
        if not call.done:
            try:
                self._run(self._taken(call))
            finally:
                self._hand_over()
        return call.result()

    def _taken(self, first: Call) -> list[Call]:
        """A call and those that wait and fit to it, as far as there is room, in the order in which they came."""
        with self._lock:
            self._waiting.remove(first)
            taken, rows, size = [first], first.rows, first.bytes
            for call in [call for call in self._waiting if call.fits == first.fits]:
                rows, size = rows + call.rows, size + call.bytes
                if rows > MOST_ROWS or size > MOST_BYTES:
                    break
                self._waiting.remove(call)
                taken.append(call)
        return taken

    def _run(self, calls: Sequence[Call]) -> None:
        """Run the network once for all of them, and tell those who wait; where that fails, for each alone."""
        if self.observe is not None:
            self.observe(len(calls), self.waiting)
        try:
            outcomes = calls[0].run([call.arguments for call in calls])
        except Exception as error:
            if len(calls) == 1:
                calls[0].end(None, error)  # raised in the thread of its stream, and in no other
                return
            for call in calls:
                self._run([call])
        else:
            for call, outcome in zip(calls, outcomes, strict=True):
                call.end(outcome)

    def _hand_over(self) -> None:
        """The network is free: it is the turn of whoever has waited longest."""
        with self._lock:
            self._busy = bool(self._waiting)
            if self._waiting:
                self._waiting[0].woken.set()

    def _embed(self, calls: Sequence[FloatArray]) -> list[FloatArray]:
        if len(calls) == 1:
            return [self.inner.embed(calls[0])]
        return _handed_out(self.inner.embed(np.concatenate(calls)), [len(features) for features in calls])

    def _encode(self, calls: Sequence[Encoding]) -> list[Encoded]:
        if len(calls) == 1:
            return [self.inner.encode(*calls[0])]
        return _handed_out(self.inner.encode(*join_rows(*calls)), [len(call.x_BWE) for call in calls])

    def _decode(self, calls: Sequence[Decoding]) -> list[Decoded]:
        if len(calls) == 1:
            return [self.inner.decode(*calls[0])]
        rows = [len(call.tokens_B) for call in calls]
        memories = [call.memory for call in calls]
        frames = [memory.keys_BNHTD.shape[3] for memory in memories]
        memory = Memory(*(_stacked(parts, rows) for parts in zip(*memories, strict=True)))
        tokens_B = np.concatenate([call.tokens_B for call in calls])
        state, window = join_rows(*(call.state for call in calls)), join_rows(*(call.window for call in calls))
        handed = _handed_out(self.inner.decode(tokens_B, memory, state, window), rows)
        return [out._replace(weights_BHT=out.weights_BHT[..., :own]) for out, own in zip(handed, frames, strict=True)]


def _stacked(parts: Sequence[FloatArray], rows: Sequence[int]) -> FloatArray:
    """Frames of several streams as rows of one array, each stream's once for every row it has, zeros behind them."""
    _, layers, heads, _, width = parts[0].shape
    longest = max(part.shape[3] for part in parts)
    stacked = np.zeros((sum(rows), layers, heads, longest, width), parts[0].dtype)
    first = 0
    for part, count in zip(parts, rows, strict=True):
        stacked[first : first + count, :, :, : part.shape[3]] = part
        first += count
    return stacked


def _handed_out(tree: R, rows: Sequence[int]) -> list[R]:
    """The rows of a tree, cut into so many each; copies, so that no stream keeps the rows of others alive."""
    ends = np.cumsum(rows).tolist()
    return [take_rows(tree, range(end - count, end)) for end, count in zip(ends, rows, strict=True)]


def _shape(tree: Any) -> Any:
    """What two trees must share for their rows to be joined."""
    return tuple(_shape(part) for part in tree) if isinstance(tree, tuple) else (tree.shape[1:], tree.dtype.str)
