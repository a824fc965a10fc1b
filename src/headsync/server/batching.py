"""An engine that runs the calls of several streams as one batch.

`BatchingEngine` wraps an engine and is called from the threads of all streams. A call that finds the network free runs
at once, so a single stream never waits. Calls that arrive while the network is busy wait; when it is free, the oldest
one runs every compatible waiting call in one batch and distributes the rows of the result.

Compatible are encoder windows of the same sizes, and decoder steps whose states can be joined: with ONNX Runtime all
steps, with PyTorch those after equally many tokens. Memories are padded with zeros to the longest; the windows exclude
the padding. A row of a batch equals the row computed alone, up to the rounding of sums.

Shapes as in `headsync.engine`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from headsync.engine import Decoded, Encoded, Engine, IntArray, Memory, State, Window
from headsync.engine.state_tree import join_rows, take_rows
from headsync.frontend.audio import FloatArray

R = TypeVar("R")
RunBatch: TypeAlias = Callable[[Sequence[Any]], list[Any]]  # the arguments of several calls -> their results

MAX_ROWS = 64
MAX_BYTES = 32 << 20  # of memories copied for one batch; copying more costs more than the batch saves


class _Call:
    """One stream's call to the network. Calls with equal keys are compatible."""

    def __init__(self, run: RunBatch, key: Any, arguments: Any, size: tuple[int, int]) -> None:
        self.run, self.key, self.arguments = run, key, arguments
        self.rows, self.bytes = size
        self.wake = threading.Event()  # the call is done, or it is its turn to run the network
        self.done = False
        self._result: Any = None
        self._error: Exception | None = None

    def complete(self, result: Any, error: Exception | None = None) -> None:
        """Store the result or the error and wake the thread that waits for it."""
        self._result, self._error, self.done = result, error, True
        self.wake.set()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class _DecodeArguments(NamedTuple):
    tokens_B: IntArray
    memory: Memory
    state: State
    window: Window


class BatchingEngine:
    def __init__(self, inner: Engine, observe: Callable[[int, int], None] | None = None) -> None:
        self.inner = inner
        self.observe = observe  # called with the size of every batch and the number of calls that still wait
        self._lock = threading.Lock()  # guards the next two attributes
        self._waiting: list[_Call] = []
        self._busy = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start_front(self, batch: int) -> State:
        return self.inner.start_front(batch)

    def embed(self, features_BTF: FloatArray, state: State) -> tuple[FloatArray, State]:
        return self._submit_rows("embed", (features_BTF, state))  # type: ignore[no-any-return]

    def start_encoder(self, batch: int) -> State:
        return self.inner.start_encoder(batch)

    def encode(self, x_BWE: FloatArray, length_B: IntArray, state: State, centre: int) -> Encoded:
        return self._submit_rows("encode", (x_BWE, length_B, state), centre)  # type: ignore[no-any-return]

    def place(self, memory: Memory, first: int) -> Memory:
        return self.inner.place(memory, first)

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        return self.inner.start_decoder(batch, threshold)

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        rows = len(tokens_B)
        size = rows, rows * sum(part.nbytes // len(part) for part in memory)
        arguments = _DecodeArguments(tokens_B, memory, state, window)
        return self._submit(_Call(self._decode, ("decode", _shape(state)), arguments, size))  # type: ignore[no-any-return]

    def _submit_rows(self, name: str, rows: tuple[Any, ...], *sizes: int) -> Any:
        """Submit a call whose `rows` can be joined with those of calls with the same `sizes`."""
        run, key = partial(self._run_rows, name, sizes), (name, sizes, _shape(rows))
        return self._submit(_Call(run, key, rows, (len(rows[0]), 0)))

    def _submit(self, call: _Call) -> Any:
        with self._lock:
            self._waiting.append(call)
            turn, self._busy = not self._busy, True
        if not turn:
            call.wake.wait()
        if not call.done:
            try:
                self._run(self._take_batch(call))
            finally:
                self._wake_next()
        return call.result()

    def _take_batch(self, first: _Call) -> list[_Call]:
        """Remove a call and the compatible waiting calls from the queue, oldest first, up to the size limits."""
        with self._lock:
            self._waiting.remove(first)
            batch, rows, size = [first], first.rows, first.bytes
            for call in [call for call in self._waiting if call.key == first.key]:
                rows, size = rows + call.rows, size + call.bytes
                if rows > MAX_ROWS or size > MAX_BYTES:
                    break
                self._waiting.remove(call)
                batch.append(call)
        return batch

    def _run(self, calls: Sequence[_Call]) -> None:
        """Run a batch. If it fails, run each call alone, so that only the faulty call gets the error."""
        if self.observe is not None:
            self.observe(len(calls), self.waiting)
        try:
            results = calls[0].run([call.arguments for call in calls])
        except Exception as error:
            if len(calls) == 1:
                calls[0].complete(None, error)  # raised in the thread of its stream
                return
            for call in calls:
                self._run([call])
        else:
            for call, result in zip(calls, results, strict=True):
                call.complete(result)

    def _wake_next(self) -> None:
        """The network is free: wake the call that has waited longest."""
        with self._lock:
            self._busy = bool(self._waiting)
            if self._waiting:
                self._waiting[0].wake.set()

    def _run_rows(self, name: str, sizes: tuple[int, ...], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        call = getattr(self.inner, name)
        if len(calls) == 1:
            return [call(*calls[0], *sizes)]
        return _split_rows(call(*join_rows(*calls), *sizes), [len(rows[0]) for rows in calls])

    def _decode(self, calls: Sequence[_DecodeArguments]) -> list[Decoded]:
        if len(calls) == 1:
            return [self.inner.decode(*calls[0])]
        rows = [len(call.tokens_B) for call in calls]
        memories = [call.memory for call in calls]
        frames = [memory.keys_BNHTD.shape[3] for memory in memories]
        memory = Memory(*(_stack_memory(parts, rows) for parts in zip(*memories, strict=True)))
        tokens_B = np.concatenate([call.tokens_B for call in calls])
        state, window = join_rows(*(call.state for call in calls)), join_rows(*(call.window for call in calls))
        parts = _split_rows(self.inner.decode(tokens_B, memory, state, window), rows)
        return [out._replace(weights_BHT=out.weights_BHT[..., :own]) for out, own in zip(parts, frames, strict=True)]


def _stack_memory(parts: Sequence[FloatArray], rows: Sequence[int]) -> FloatArray:
    """Memories of several streams as one array: each repeated for its rows, padded with zeros to the longest."""
    _, layers, heads, _, width = parts[0].shape
    longest = max(part.shape[3] for part in parts)
    stacked = np.zeros((sum(rows), layers, heads, longest, width), parts[0].dtype)
    first = 0
    for part, count in zip(parts, rows, strict=True):
        stacked[first : first + count, :, :, : part.shape[3]] = part
        first += count
    return stacked


def _split_rows(tree: R, rows: Sequence[int]) -> list[R]:
    """Split the rows of a tree. The parts are copies, so that no stream keeps the rows of others alive."""
    ends = np.cumsum(rows).tolist()
    return [take_rows(tree, range(end - count, end)) for end, count in zip(ends, rows, strict=True)]


def _shape(tree: Any) -> Any:
    """Shapes and types that two trees must share for their rows to be joined."""
    return tuple(_shape(part) for part in tree) if isinstance(tree, tuple) else (tree.shape[1:], tree.dtype.str)
