"""Speed of recognition relative to its matrix products.

    python benchmarks/speed.py [--classes 52 5000] [--beam 1 10] [--seconds 10] [--int8] [--mechanisms] [--json FILE]

The networks have the paper's size (6 encoder and 12 decoder layers of width 256, 4 heads, feed-forward width 2048).
A network with random weights recognises nothing. Its scores are overwritten after they are computed: CTC emits
tokens at a fixed rate, and the decoder does not end before the audio. Every operation of features, network and search
runs. Times are processor times on one thread, and the bound is measured in the same run, after every piece of audio.
Tokens come at 15 per second for 52 classes, which are characters, and at 4 otherwise.

The bound is the time of the matrix products of encoder and decoder on the same audio: convolutions as products, every
window of the encoder, keys and values of each frame once, and for every label step one product with each weight for all
hypotheses, and the products with keys and values of frames and tokens. It has no norm, no softmax and no copy.

Shapes as in `headsync.engine`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from headsync.config import Config
from headsync.engine import Decoded, Encoded, Engine, IntArray, Memory, State, Window, load_engine
from headsync.events import Final, Partial
from headsync.frontend.audio import SAMPLE_RATE, FloatArray
from headsync.model_folder import ModelFolder
from headsync.recognizer import Recognizer

SURE, UNSURE = -0.05, -8.0  # log probability of the emitted token, and offset of all others
DAMPED = 0.1  # scale of decoder scores: CTC decides
NEVER = -50.0
PIECE_SECONDS = 0.1
TOKENS_PER_SECOND = {52: 15.0}  # of characters
DEFAULT_TOKENS_PER_SECOND = 4.0  # of larger vocabularies: words or subwords
FRAMES = (50, 100, 250, 500, 1000)  # 2 to 40 s
HEADER = (
    "| classes | beam | audio | computing per second | in the last fifth | products | ratio | first token |",
    "|---|---|---|---|---|---|---|---|",
)
Product: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]


class Speed(NamedTuple):
    """The cost of a stream."""

    seconds: float  # of audio
    computing: float  # seconds of processor time
    bound: float  # seconds of processor time of the matrix products
    last: float  # computing per second of audio in the last fifth
    first_token: float  # seconds of audio before the first token
    tokens: int
    steps: int

    @property
    def each(self) -> float:
        """Seconds of computing per second of audio."""
        return self.computing / self.seconds

    @property
    def ratio(self) -> float:
        """Computing time divided by the bound."""
        return self.computing / self.bound


class EngineCall(NamedTuple):
    """A call of the network."""

    kind: str
    rows: int  # input frames (embed, encode) or hypotheses (decode)
    frames: int  # output frames (encode) or visible frames (decode)
    written: int = 0


class PacedEngine:
    """An engine that computes everything, then overwrites CTC scores to emit tokens at a fixed rate."""

    def __init__(self, inner: Engine, rate: float, folder: ModelFolder) -> None:
        self.inner, self.rate, self.classes = inner, rate, folder.vocabulary.size
        self.frame_seconds = folder.config.frame_rate.seconds
        self.done: list[EngineCall] = []  # since the list was cleared
        self._frame = 0

    def start_front(self, batch: int) -> State:
        return self.inner.start_front(batch)

    def embed(self, features_BTF: FloatArray, state: State) -> tuple[FloatArray, State]:
        self.done.append(EngineCall("embed", features_BTF.shape[1], 0))
        return self.inner.embed(features_BTF, state)

    def start_encoder(self, batch: int) -> State:
        return self.inner.start_encoder(batch)

    def encode(self, x_BWE: FloatArray, length_B: IntArray, state: State, centre: int) -> Encoded:
        encoded = self.inner.encode(x_BWE, length_B, state, centre)
        log_ctc_BTV = encoded.log_ctc_BTV + UNSURE
        self.done.append(EngineCall("encode", x_BWE.shape[1], log_ctc_BTV.shape[1]))
        for t in range(log_ctc_BTV.shape[1]):
            before, after = (int(self.rate * self.frame_seconds * (self._frame + more)) for more in (0, 1))
            said = 1 + 7 * before % (self.classes - 2) if after > before else 0
            log_ctc_BTV[0, t, said] = SURE
            self._frame += 1
        return encoded._replace(log_ctc_BTV=log_ctc_BTV)

    def place(self, memory: Memory, first: int) -> Memory:
        return self.inner.place(memory, first)

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        return (self.inner.start_decoder(batch, threshold), np.zeros(batch, np.int64))

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        inner, written_B = state
        decoded = self.inner.decode(tokens_B, memory, inner, window)
        self.done.append(EngineCall("decode", len(tokens_B), memory.keys_BNHTD.shape[3], int(written_B[0])))
        log_p_BV = DAMPED * decoded.log_p_BV
        log_p_BV[:, -1] = 0.0 if window.final_B.all() else NEVER
        return decoded._replace(log_p_BV=log_p_BV, state=(decoded.state, written_B + 1))


class MatrixProducts:
    """The matrix products of a network, with operands in memory."""

    def __init__(self, config: Config, classes: int) -> None:
        self.config, self.classes = config, classes
        self._rng = np.random.default_rng(0)
        self._ready: dict[tuple[int, ...], FloatArray] = {}

    def seconds(self, done: Sequence[EngineCall]) -> float:
        """Processor time of the products of these calls."""
        products = [product for call in done for product in self._of(call)]
        pairs = [(self._operand(0, *left), self._operand(place, *right)) for place, left, right in products]
        started = time.process_time()
        for left, right in pairs:
            np.matmul(left, right)
        return time.process_time() - started

    def _operand(self, place: int, *shape: int) -> FloatArray:
        """A random array of a shape; different places have different arrays, as layers have different weights."""
        if (place, *shape) not in self._ready:
            self._ready[place, *shape] = self._rng.standard_normal(shape).astype(np.float32)
        return self._ready[place, *shape]

    def _of(self, call: EngineCall) -> Iterator[Product]:
        """Place of the weight, shape of the left operand, shape of the right operand."""
        if call.kind == "embed":
            yield from self._embed(call.rows)
        elif call.kind == "encode":
            yield from self._encode(call)
        else:
            yield from self._decode(call)

    def _embed(self, features: int) -> Iterator[Product]:
        network, columns = self.config.network, self.config.columns
        inputs = 1
        for _ in range(2):
            features, columns = (features - 3) // 2 + 1, (columns - 3) // 2 + 1
            yield 1, (features * columns, 9 * inputs), (9 * inputs, network.kernels)
            inputs = network.kernels
        yield 1, (features, network.kernels * columns), (network.kernels * columns, network.width)

    def _encode(self, call: EngineCall) -> Iterator[Product]:
        network, encoder = self.config.network, self.config.encoder
        left = 0 if encoder.mode == "full" else encoder.left_frames
        queries = call.rows if encoder.mode == "reuse" else left + call.rows
        keys, width = left + call.rows, network.width
        for layer in range(encoder.layers):
            rows = call.frames if layer == encoder.layers - 1 else queries
            yield layer, (rows, width), (width, width)
            yield layer, (keys, width), (width, 2 * width)
            yield from self._attention(rows, keys, network.heads)
            yield layer, (rows, width), (width, width)
            yield from self._feedforward(layer, rows)
        yield 1, (call.frames, width), (width, self.classes)
        for layer in range(self.config.decoder.layers):
            yield layer, (call.frames, width), (width, 2 * width)

    def _decode(self, call: EngineCall) -> Iterator[Product]:
        width, heads = self.config.network.width, self.config.decoder.heads or self.config.network.heads
        for layer in range(self.config.decoder.layers):
            yield 100 + layer, (call.rows, width), (width, 3 * width)
            yield from self._attention(call.rows, call.written + 1, heads)
            for place in (100, 200, 300):  # output of self-attention, query and output of cross-attention
                yield place + layer, (call.rows, width), (width, width)
            yield from self._attention(call.rows, call.frames, heads)
            yield from self._feedforward(100 + layer, call.rows)
        yield 1, (call.rows, width), (width, self.classes)

    def _attention(self, queries: int, keys: int, heads: int) -> Iterator[Product]:
        size = self.config.network.width // heads
        yield 0, (heads, queries, size), (heads, size, keys)
        yield 0, (heads, queries, keys), (heads, keys, size)

    def _feedforward(self, layer: int, rows: int) -> Iterator[Product]:
        width, wide = self.config.network.width, self.config.network.feedforward
        yield layer, (rows, width), (width, wide)
        yield layer, (rows, wide), (wide, width)


def measure(folder: ModelFolder, engine: Engine, seconds: float, rate: float, **settings: float) -> Speed:
    """Stream noise through a recogniser that emits tokens at a rate."""
    paced = PacedEngine(engine, rate, folder)
    decoding = replace(folder.config.decoding, **settings)  # type: ignore[arg-type]
    session = Recognizer(folder, paced, decoding).session()
    products = MatrixProducts(folder.config, folder.vocabulary.size)
    sound = 0.1 * np.random.default_rng(1).standard_normal(round(seconds * SAMPLE_RATE)).astype(np.float32)
    piece = round(PIECE_SECONDS * SAMPLE_RATE)
    computing: list[float] = []
    bound, first, tokens, steps = 0.0, math.inf, 0, 0
    with threadpool_limits(1):
        for start in range(0, len(sound), piece):
            began = time.process_time()
            events = session.push(sound[start : start + piece], SAMPLE_RATE)
            events += session.finish() if start + piece >= len(sound) else []
            computing.append(time.process_time() - began)
            bound += products.seconds(paced.done)
            steps += sum(call.kind == "decode" for call in paced.done)
            paced.done.clear()
            texts = [event for event in events if isinstance(event, Partial | Final) and event.text]
            first = min(first, (start + piece) / SAMPLE_RATE) if texts else first
            tokens += sum(len(event.halts) for event in texts if isinstance(event, Final))
    fifth = max(1, len(computing) // 5)
    last = sum(computing[-fifth:]) / (fifth * PIECE_SECONDS)
    return Speed(seconds, sum(computing), bound, last, first, tokens, steps)


def step_seconds(folder: ModelFolder, engine: Engine, beam: int, frames: int, runs: int = 15) -> float:
    """Median processor time of one label step with this many visible frames."""
    rng = np.random.default_rng(frames)
    network, decoder = folder.config.network, folder.config.decoder
    heads = decoder.heads or network.heads
    shape = (1, decoder.layers, frames, heads, network.width // heads)  # frames first, as the engine gives them
    memory = Memory(*(rng.standard_normal((2, *shape)).astype(np.float32).transpose(0, 1, 2, 4, 3, 5)))
    window = Window(np.full(beam, frames), np.full(beam, frames), np.ones(beam, bool))
    tokens_B, state, times = np.ones(beam, np.int64), engine.start_decoder(beam), list[float]()
    for _ in range(runs):
        began = time.process_time()
        state = engine.decode(tokens_B, memory, state, window).state
        times.append(time.process_time() - began)
    return float(np.median(times[runs // 3 :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[52, 5000], help="number of output classes")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 10], help="beam width")
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0], help="length of a stream")
    parser.add_argument("--int8", action="store_true", help="use 8-bit weights")
    parser.add_argument("--mechanisms", action="store_true", help="also time the steps of each mechanism")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    from random_model import untrained  # imports PyTorch

    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = [untrained(Path(folder) / str(number), number, int8=given.int8) for number in given.classes]
        print("\n".join(HEADER))
        for model in models:
            figures += [{"int8": given.int8, **row} for row in speeds(model, given.beam, given.seconds)]
        if given.mechanisms:
            print("\n| mechanism | " + " | ".join(f"{frames} frames" for frames in FRAMES) + " |")
            print("|---|" + "---|" * len(FRAMES))
            for name in ("hs-dacs", "dacs", "softmax"):
                model = untrained(Path(folder) / name, given.classes[0], name, given.int8)
                steps = [step_seconds(model, load_engine(model), max(given.beam), frames) for frames in FRAMES]
                print(f"| {name} | " + " | ".join(f"{1e3 * step:.1f} ms" for step in steps) + " |")
                figures.append({"mechanism": name, "step_seconds": dict(zip(FRAMES, steps, strict=True))})
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def speeds(model: ModelFolder, beams: Sequence[int], lengths: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Print a row for each beam and length, and yield its figures."""
    engine, classes = load_engine(model), model.vocabulary.size
    rate = TOKENS_PER_SECOND.get(classes, DEFAULT_TOKENS_PER_SECOND)
    measure(model, engine, 3.0, rate)  # warm-up
    for beam in beams:
        for length in lengths:
            s = measure(model, engine, length, rate, beam=beam)
            cells = f"{classes} | {beam} | {length:.0f} s | {s.each:.3f} s | {s.last:.3f} s | {s.bound / length:.3f} s"
            print(f"| {cells} | {s.ratio:.2f} | {s.first_token:.1f} s |")
            yield {"classes": classes, "beam": beam, **s._asdict()}


if __name__ == "__main__":
    main()
