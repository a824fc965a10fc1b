"""The effect of each optimisation of the ONNX engine: its speed with and without the optimisation.

    python benchmarks/steps.py [--classes 52] [--rate 15] [--beam 10] [--seconds 10] [--rounds 3] [--only NAME ...]

The network has the paper's size and random weights, as in `benchmarks/where.py`. Figures are CPU ms per second
of audio on one thread: medians over rounds that alternate between the variants. An optimisation is removed by replacing
its code with the simpler version; the number of tokens and steps must not change. The last two rows are other networks,
whose scores and tokens differ slightly.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from headsync.config import EncoderConfig
from headsync.engine import Decoded, IntArray, Memory, State, Window, load_engine
from headsync.engine.frame_buffer import FrameBuffer
from headsync.engine.kv_pool import EMPTY, KeyValuePool, Past
from headsync.engine.onnx import OnnxEngine
from headsync.model_folder import ModelFolder
from random_model import untrained
from speed import Speed, measure
from where import PARTS, Watched, parser_of

Patches = list[Any]


def nothing() -> Patches:
    return []


def frames_projected_once() -> Patches:
    """Every step projects keys and values of the frames again, for all layers."""
    inner, weights = OnnxEngine.decode, dict[int, Any]()

    def decode(self: OnnxEngine, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        _, layers, _, frames, _ = memory.keys_BNHTD.shape
        width = self._width
        if not weights:
            rng = np.random.default_rng(0)
            weights.update({n: rng.standard_normal((width, 2 * width)).astype(np.float32) for n in range(layers)})
        frames_TE = np.ones((frames, width), np.float32)
        for layer in range(layers):
            np.matmul(frames_TE, weights[layer])
        return inner(self, tokens_B, memory, state, window)

    return [patch.object(OnnxEngine, "decode", decode)]


def one_product_for_all() -> Patches:
    """Every hypothesis multiplies its query with the keys of the frames separately."""
    return [patch(f"headsync.attention.{place}.side_by_side", lambda x, y: x @ y) for place in ("base", "cross")]


def one_pool() -> Patches:
    """Every hypothesis has its own keys and values of tokens, copied for every new token."""

    def appended(self: Past, own_BNE: Any) -> Past:
        rows, length = self.slots_BL.shape
        pool = KeyValuePool(self.pool._both[:, :, np.concatenate([[EMPTY], self.slots_BL.ravel()])])
        own_BL = 1 + np.arange(rows * length).reshape(rows, length)
        own_BL = np.where(self.slots_BL == EMPTY, EMPTY, own_BL)
        new_B = pool.append(own_BNE)
        return Past(pool, np.concatenate([own_BL, new_B[:, None]], 1), self.written_B + 1)

    return [patch.object(Past, "appended", appended), patch.object(Past, "compacted", lambda self: self)]


def frames_that_grow() -> Patches:
    """Frames are copied when new ones arrive, and again for every step, since heads precede frames in memory."""

    def append(self: FrameBuffer, memory: Memory, new: Memory) -> tuple[Memory, FrameBuffer]:
        return Memory(*(np.concatenate(both, 3) for both in zip(memory, new, strict=True))), self

    return [patch.object(FrameBuffer, "append", append)]


def sizes_computed_once() -> Patches:
    """Every layer of the step graph computes its sizes."""
    return [patch("headsync.engine.export._one_source_of_sizes", lambda graph: graph)]


def places_as_a_table() -> Patches:
    """The places of frames are projected for every window."""
    inner = OnnxEngine._places_up_to

    def places_up_to(self: OnnxEngine, end: int) -> Any:
        self._table = None
        return inner(self, end)

    return [patch.object(OnnxEngine, "_places_up_to", places_up_to)]


STEPS: dict[str, tuple[str, Callable[[], Patches]]] = {
    "now": ("all optimisations", nothing),
    "projected": ("without keys and values projected once", frames_projected_once),
    "product": ("without one product for all hypotheses", one_product_for_all),
    "pool": ("without one pool for all tokens", one_pool),
    "room": ("without frames in the order in which they grow", frames_that_grow),
    "sizes": ("without sizes computed once", sizes_computed_once),
    "places": ("without a table of places", places_as_a_table),
    "reuse": ("with left states reused (encoder.mode)", nothing),
    "int8": ("with 8-bit products", nothing),
}

OTHER_NETWORKS = ("reuse", "int8")


@contextmanager
def undone(name: str) -> Iterator[None]:
    patches = STEPS[name][1]()
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def model_of(name: str, folder: Path, classes: int) -> ModelFolder:
    """The model exported without an optimisation: some optimisations are part of the graphs."""
    encoder = EncoderConfig(mode="reuse") if name == "reuse" else None
    with undone(name):
        return untrained(folder / name, classes, encoder=encoder, int8=name == "int8")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    given = parser.parse_args()
    columns = (*PARTS, "rest", "all")
    with tempfile.TemporaryDirectory() as folder:
        models = {name: model_of(name, Path(folder), given.classes) for name in given.only}
        spent: dict[str, list[list[float]]] = {name: [] for name in given.only}
        work = set()
        for _ in range(given.rounds):
            for name, model in models.items():
                with undone(name):
                    speed, parts = profile(model, given.seconds, given.rate, given.beam)
                spent[name].append(parts)
                if name not in OTHER_NETWORKS:
                    work.add((speed.tokens, speed.steps))
        if len(work) > 1:
            sys.exit(f"not the same work: {sorted(work)} tokens and steps")
    print("| engine | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name, rounds in spent.items():
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"| {STEPS[name][0]} | " + " | ".join(f"{1e3 * each / given.seconds:.0f}" for each in medians) + " |")


def profile(model: ModelFolder, seconds: float, rate: float, beam: int) -> tuple[Speed, list[float]]:
    """The cost of a stream, and CPU seconds in each part of the engine, in the rest, and in total."""
    engine = Watched(load_engine(model, engine="onnx"))
    measure(model, engine, 2.0, rate, beam=beam)  # type: ignore[arg-type]  # warms up
    engine.spent.clear()
    speed = measure(model, engine, seconds, rate, beam=beam)  # type: ignore[arg-type]
    parts = [engine.spent[part] for part in PARTS]
    return speed, [*parts, speed.computing - sum(parts), speed.computing]


if __name__ == "__main__":
    main()
