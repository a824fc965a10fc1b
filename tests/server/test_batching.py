"""Streams that share the network get the same results as alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.test_engines import exported_moonshine
from headsync.config import EncoderConfig
from headsync.engine import NO_LIMIT, Engine, Memory, State, Window, load_engine
from headsync.engine.kv_pool import Past
from headsync.events import Final
from headsync.frontend.frame_rate import WAVEFORM
from headsync.recognizer import Recognizer
from headsync.server import batching
from headsync.server.base_stream import SessionOptions
from headsync.server.batching import BatchingEngine
from headsync.server.model_service import ModelService


class Gate:
    """An engine whose first call waits until others have queued up; it counts the rows of every call."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.open, self.entered = threading.Event(), threading.Event()
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _pass(self, rows: int) -> None:
        self.rows.append(rows)
        self.entered.set()
        assert self.open.wait(60)

    def encode(self, x_BWE: Any, length_B: Any, state: State, centre: int) -> Any:
        self._pass(len(x_BWE))
        return self.inner.encode(x_BWE, length_B, state, centre)

    def decode(self, tokens_B: Any, memory: Memory, state: State, window: Window) -> Any:
        self._pass(len(tokens_B))
        return self.inner.decode(tokens_B, memory, state, window)

    def embed(self, features_BTF: Any, state: State) -> Any:
        self._pass(len(features_BTF))
        return self.inner.embed(features_BTF, state)


def together(gate: Gate, shared: BatchingEngine, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The first call alone, all others while it lasts."""
    with ThreadPoolExecutor(len(calls)) as pool:
        first = pool.submit(calls[0])
        assert gate.entered.wait(60)
        others = [pool.submit(call) for call in calls[1:]]
        while shared.waiting < len(others):
            assert not any(other.done() for other in others)
        gate.open.set()
        return [future.exception(60) or future.result() for future in (first, *others)]


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, Past):
        assert_same(one.written_B, other.written_B)
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif one.dtype.kind == "f":
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)  # sums in float32, in another order
    else:
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module", params=["onnx", "torch"])
def engine(recognizer: Recognizer, request: pytest.FixtureRequest) -> Engine:
    return load_engine(recognizer.folder, engine=request.param)


def windows(engine: Engine, lengths: Sequence[int]) -> list[tuple[Any, ...]]:
    """Arguments of `encode`, after a window each, so that states differ."""
    rng = np.random.default_rng(1)
    calls = []
    for length in lengths:
        features = rng.standard_normal((1, WAVEFORM.needed(16), 64)).astype(np.float32)
        x = engine.embed(features, engine.start_front(1))[0][:, :16]
        state = engine.encode(x, np.array([16]), engine.start_encoder(1), 8).state
        x = x[:, ::-1].copy()
        x[:, length:] = 0
        calls.append((x, np.array([length]), state, 8))
    return calls


def test_windows_of_several_streams(engine: Engine) -> None:
    gate = Gate(engine)
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    calls = windows(engine, [16, 16, 5, 12])
    results = together(gate, shared, [lambda call=call: shared.encode(*call) for call in calls])
    assert gate.rows == [1, 3]
    for call, result in zip(calls, results, strict=True):
        assert_same(result, engine.encode(*call))


def steps(engine: Engine, shapes: Sequence[tuple[int, int, int]]) -> list[tuple[Any, ...]]:
    """Arguments of `decode`: rows, frames, and tokens written before."""
    rng = np.random.default_rng(2)
    call, *_ = windows(engine, [16])
    one = engine.encode(*call).memory
    calls = []
    for rows, frames, written in shapes:
        noise = [rng.standard_normal((1, *part.shape[1:3], frames, part.shape[4])) for part in one]
        memory = engine.place(Memory(*(part.astype(np.float32) for part in noise)), 0)
        state = engine.start_decoder(rows)
        window = Window(np.full(rows, NO_LIMIT), np.full(rows, frames), np.ones(rows, bool))
        for _ in range(written):
            state = engine.decode(rng.integers(1, 9, rows), memory, state, window).state
        limit = rng.integers(1, frames + 9, rows)
        window = Window(limit, np.full(rows, frames), rng.random(rows) < 0.5)
        calls.append((rng.integers(1, 9, rows), memory, state, window))
    return calls


def test_steps_of_several_streams(engine: Engine) -> None:
    """Steps are batched for any frames and hypotheses; with PyTorch, those after equally many tokens."""
    gate = Gate(engine)
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    calls = steps(engine, [(1, 9, 2), (1, 30, 2), (3, 7, 2), (2, 11, 3), (2, 40, 2)])
    results = together(gate, shared, [lambda call=call: shared.decode(*call) for call in calls])
    assert sorted(gate.rows) == ([1, 2, 6] if type(engine).__name__ == "TorchEngine" else [1, 8])
    for call, result in zip(calls, results, strict=True):
        alone = engine.decode(*call)
        assert result.weights_BHT.shape == alone.weights_BHT.shape
        assert_same(result, alone)


def test_embedding_together(engine: Engine) -> None:
    gate = Gate(engine)
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    features = np.random.default_rng(3).standard_normal((4, 1, WAVEFORM.needed(3), 64)).astype(np.float32)
    results = together(gate, shared, [lambda x=x: shared.embed(x, engine.start_front(1)) for x in features])
    assert gate.rows == [1, 3]
    for x, result in zip(features, results, strict=True):
        assert_same(result, engine.embed(x, engine.start_front(1)))


@pytest.mark.parametrize("name", ["onnx", "torch"])
def test_streams_of_samples_keep_their_own_levels(name: str, tmp_path: Path) -> None:
    engine = load_engine(exported_moonshine(tmp_path), engine=name)
    gate, rng = Gate(engine), np.random.default_rng(3)
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    samples = rng.standard_normal((4, 1, WAVEFORM.needed(3), 64)).astype(np.float32)
    earlier = samples * np.array([1, 0.1, 0.01, 0.5], np.float32)[:, None, None, None]
    states = [engine.embed(x, engine.start_front(1))[1] for x in earlier]
    calls = [lambda x=x, state=state: shared.embed(x, state) for x, state in zip(samples, states, strict=True)]
    results = together(gate, shared, calls)
    assert gate.rows == [1, 3]
    for x, state, result in zip(samples, states, results, strict=True):
        assert_same(result, engine.embed(x, state))


@pytest.mark.parametrize("name", ["onnx", "torch"])
def test_windows_share_a_batch_if_all_their_sizes_are_equal(name: str, tmp_path: Path) -> None:
    encoder = EncoderConfig(2, 5, 3, 2, "reuse", varied_frames="1 7")
    engine, rng = load_engine(exported_moonshine(tmp_path, encoder=encoder), engine=name), np.random.default_rng(4)
    gate, calls = Gate(engine), list[tuple[Any, ...]]()
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    for centre, right in [(3, 2), (3, 2), (2, 3), (4, 3), (2, 3), (3, 2), (4, 3)]:  # the first three have five frames
        x = rng.standard_normal((2, 1, centre + right, 32)).astype(np.float32)
        length = np.array([centre + right])
        calls.append((x[1], length, engine.encode(x[0], length, engine.start_encoder(1), centre).state, centre))
    results = together(gate, shared, [lambda call=call: shared.encode(*call) for call in calls])
    assert gate.rows[0] == 1
    assert sorted(gate.rows[1:]) == [2, 2, 2]
    for call, result in zip(calls, results, strict=True):
        assert result.log_ctc_BTV.shape[1] == call[3]
        assert_same(result, engine.encode(*call))


def test_a_batch_has_an_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MAX_ROWS", 2)
    gate = Gate(engine)
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    calls = windows(engine, [16] * 6)
    together(gate, shared, [lambda call=call: shared.encode(*call) for call in calls])
    assert gate.rows == [1, 2, 2, 1]


def test_large_memories_are_not_copied(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MAX_BYTES", 1000)
    gate = Gate(engine)
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    calls = steps(engine, [(1, 9, 0), (2, 9, 0), (3, 9, 0)])
    together(gate, shared, [lambda call=call: shared.decode(*call) for call in calls])
    assert gate.rows == [1, 2, 3]


def test_an_error_affects_only_its_own_stream(engine: Engine) -> None:
    class Faulty(Gate):
        def encode(self, x_BWE: Any, length_B: Any, state: State, centre: int) -> Any:
            self._pass(len(x_BWE))
            if (length_B == 13).any():
                raise ValueError("thirteen")
            return self.inner.encode(x_BWE, length_B, state, centre)

    gate = Faulty(engine)
    shared = BatchingEngine(gate)  # type: ignore[arg-type]
    calls = windows(engine, [16, 12, 13, 14])
    results = together(gate, shared, [lambda call=call: shared.encode(*call) for call in calls])
    assert isinstance(results[2], ValueError)
    for place in (0, 1, 3):
        assert_same(results[place], engine.encode(*calls[place]))
    assert_same(shared.encode(*calls[0]), engine.encode(*calls[0]))  # and it continues


def test_a_single_call_runs_in_its_own_thread(engine: Engine) -> None:
    ran: list[int] = []

    class Watched(Gate):
        def encode(self, x_BWE: Any, length_B: Any, state: State, centre: int) -> Any:
            ran.append(threading.get_ident())
            return self.inner.encode(x_BWE, length_B, state, centre)

    (call,) = windows(engine, [16])
    shared = BatchingEngine(Watched(engine))  # type: ignore[arg-type]
    assert_same(shared.encode(*call), engine.encode(*call))
    assert ran == [threading.get_ident()]


BUDGETS: list[dict[str, Any]] = [
    {"lookahead_ms": 80}, {"threshold": 0.4}, {}, {"lookahead_ms": 600, "threshold": 0.8, "pause_seconds": 0.5}
]  # fmt: skip
SIZES: list[dict[str, Any]] = [
    {}, {"centre_ms": 240, "right_ms": 240}, {"centre_ms": 240, "lookahead_ms": 200}, {"right_ms": 624, "beam": 3}
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "settings"),
    [("digits-en", [{}] * 4), ("digits-en", [{"beam": 4}] * 4), ("digits-en", BUDGETS), ("english", SIZES)],
    ids=["stored", "beam", "budgets", "encoder sizes"],
)
def test_concurrent_streams_equal_single_streams(
    model: str, settings: list[dict[str, Any]], recordings: list[tuple[Path, np.ndarray, int]]
) -> None:
    recognizer, sizes = Recognizer.load(model), list[int]()
    recordings = recordings[:4]
    shared, alone = (ModelService(recognizer, (), batching) for batching in (True, False))
    assert shared.batching is not None
    assert alone.batching is None
    shared.batching.observe = lambda calls, waiting: sizes.append(calls)
    start = threading.Barrier(len(recordings))

    def heard(service: ModelService, place: int, wait: bool) -> list[Final]:
        session = service.open_session(SessionOptions(settings=settings[place]))
        _, samples, rate = recordings[place]
        if wait:
            start.wait(60)
        events = [event for piece in np.array_split(samples, 20) for event in session.push(piece, rate)]
        return [event for event in events + session.finish() if isinstance(event, Final)]

    with ThreadPoolExecutor(len(recordings)) as pool:
        side_by_side = list(pool.map(lambda place: heard(shared, place, True), range(len(recordings))))
    assert max(sizes) > 1
    for place, finals in enumerate(side_by_side):
        expected = heard(alone, place, False)
        assert [(final.text, final.halts) for final in finals] == [(final.text, final.halts) for final in expected]
        assert expected
