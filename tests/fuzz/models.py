"""Harnesses of model folders: each replaces one file of the shipped model and loads it."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fuzz.harness import DEMO_MODEL, Harness, scratch, written
from headsync.engine import load_engine
from headsync.engine.onnx import OnnxEngine
from headsync.errors import ModelError
from headsync.frontend.features import NUM_MEL, Statistics
from headsync.model_folder import CHECKSUMS, CONFIG, GRAPHS, load_folder, load_weights, shipped, verify_checksums
from headsync.recognizer import Recognizer
from headsync.text.vocabulary import Vocabulary

ORIGINAL = shipped()[DEMO_MODEL]


@cache
def folder() -> Path:
    """A copy of the shipped model without checksums."""
    copy = scratch() / "model"
    copy.mkdir(exist_ok=True)
    for file in ORIGINAL.iterdir():
        if file.name != CHECKSUMS:
            shutil.copyfile(file, copy / file.name)
    return copy


@cache
def engine() -> OnnxEngine:
    loaded = load_engine(load_folder(ORIGINAL))
    assert isinstance(loaded, OnnxEngine)
    return loaded


def load_config_file(data: bytes) -> None:
    """A model whose config loads recognises; the network is the shipped one."""
    (folder() / CONFIG).write_bytes(data)
    loaded, original = load_folder(folder()), load_folder(ORIGINAL).config
    config = loaded.config
    tables = ("features", "network", "encoder", "decoder")
    if config.decoding.beam > 4 or any(getattr(config, one) != getattr(original, one) for one in tables):
        return
    session = Recognizer(loaded, engine(), config.decoding, None, (), config.endpoint).session()
    session.push(np.zeros(8000, np.float32), 16_000)
    session.finish()


def load_vocabulary(data: bytes) -> None:
    """A vocabulary that loads spells every token."""
    vocabulary = Vocabulary.load(written("vocabulary.json", data))
    vocabulary.decode(range(vocabulary.size)).encode()


def load_tensors(data: bytes) -> None:
    """Both readers of safetensors; the second must also see what the first refuses."""
    path = written("weights.safetensors", data)
    with suppress(ModelError):
        assert all(array.dtype != np.float16 for array in load_weights(path).values())
    Statistics.load(path, NUM_MEL)


def load_graphs(data: bytes) -> None:
    (folder() / GRAPHS).write_bytes(data)
    shutil.copyfile(ORIGINAL / CONFIG, folder() / CONFIG)
    OnnxEngine.load(load_folder(folder()), 1)


def load_onnx(data: bytes) -> None:
    (folder() / "places.onnx").write_bytes(data)
    shutil.copyfile(ORIGINAL / CONFIG, folder() / CONFIG)
    shutil.copyfile(ORIGINAL / GRAPHS, folder() / GRAPHS)
    OnnxEngine.load(load_folder(folder()), 1)


def check_sums(data: bytes) -> None:
    sums = scratch() / "sums"
    sums.mkdir(exist_ok=True)
    (sums / "a").write_bytes(b"a")
    (sums / CHECKSUMS).write_bytes(data)
    verify_checksums(sums)


def _tensors() -> list[bytes]:
    ones = np.ones(NUM_MEL, np.float32)
    return [save({"mean": ones, "deviation": ones}), save({"x": np.ones((2, 3), np.float16), "y": np.arange(3)})]


def _graphs() -> list[bytes]:
    described = json.loads((ORIGINAL / GRAPHS).read_text(encoding="utf-8"))
    short = {**described, "weights": {name: names[:3] for name, names in described["weights"].items()}}
    return [json.dumps(short).encode()]


MODELS = {
    "config": Harness(
        load_config_file,
        lambda: [(ORIGINAL / CONFIG).read_bytes()],
        [b"9" * 20, *b"inf nan 1e400 none".split()],
        native=True,
    ),
    "vocabulary": Harness(
        load_vocabulary,
        lambda: [(ORIGINAL / "vocabulary.json").read_bytes(), '{"kind": "bpe", "tokens": ["▁a", "b"]}'.encode()],
        [b"[" * 64, *rb'<space> <unk> \ud800 "characters"'.split()],
    ),
    "safetensors": Harness(
        load_tensors,
        _tensors,
        b'__metadata__ "dtype":" "data_offsets":[ BF16 F8_E4M3 F64 I64 BOOL U8 F16 F8_E8M0 F4 C64'.split(),
        native=True,
    ),
    "graphs": Harness(
        load_graphs,
        _graphs,
        [b"[" * 64, *b'"states" "heads" "weights" null'.split()],
        native=True,
        max_bytes=8192,
        cost=5,
    ),
    "onnx": Harness(load_onnx, lambda: [(ORIGINAL / "places.onnx").read_bytes()], native=True, max_bytes=8192, cost=20),
    "checksums": Harness(
        check_sums,
        lambda: [hashlib.sha256(b"a").hexdigest().encode() + b"  a\n"],
        [b"  ", b"/dev/stdin", b"../", b"\x00"],
    ),
}
