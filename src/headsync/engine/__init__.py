"""The interface between the search and the network: arrays in, arrays out, state as a value.

An engine runs the network at recognition time. Its interface is numpy only, so that recognition needs no training
framework. Only `load_engine` knows which engines exist.

Shapes: B rows, T frames, F features, E width, W frames of a window, V classes, N decoder layers, H heads, D head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headsync._parse import parse_json
from headsync.errors import ModelError, nearest_name
from headsync.frontend.audio import FloatArray
from headsync.model_folder import GRAPHS, ModelFolder

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
State = tuple[Any, ...]  # a tree of arrays, batch first: see `headsync.engine.state_tree.take_rows`

NO_LIMIT = 2**31 - 1  # a limit that no stream reaches


class Memory(NamedTuple):
    """Keys and values of encoder frames; one row serves all hypotheses."""

    keys_BNHTD: FloatArray
    values_BNHTD: FloatArray


class Window(NamedTuple):
    """The frames that each hypothesis may attend to in its next step."""

    limit_B: IntArray  # first frame it may not attend to
    frames_B: IntArray  # frames available
    final_B: BoolArray  # whether these are all frames


class Encoded(NamedTuple):
    """The centre frames of a window."""

    log_ctc_BTV: FloatArray
    memory: Memory
    state: State


class Decoded(NamedTuple):
    """One output step of every hypothesis."""

    log_p_BV: FloatArray
    end_BNH: IntArray  # frames consumed
    ready_B: BoolArray  # False: undecided
    weights_BHT: FloatArray  # of the highest layer that attends
    state: State


class Engine(Protocol):
    """A network ready to recognise; immutable, shared by every stream."""

    def start_front(self, batch: int) -> State: ...

    def embed(self, features_BTF: FloatArray, state: State) -> tuple[FloatArray, State]:
        """Feature frames to embedded encoder frames (B, T', E), and the front end's state after their strides."""

    def start_encoder(self, batch: int) -> State: ...

    def encode(self, x_BWE: FloatArray, length_B: IntArray, state: State, centre: int) -> Encoded:
        """One window of embedded frames, `centre` of them and the right ones; the first `length_B` exist."""

    def place(self, memory: Memory, first: int) -> Memory:
        """Frames of an utterance, the first one being its frame `first`; done once, before they are decoded."""

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        """The state before the first token; `threshold` replaces that of the model, for these rows."""

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        """The step after `tokens`, on placed frames."""


ENGINES = ("auto", "onnx", "torch")


def graphs_of(folder: ModelFolder) -> dict[str, Any]:
    """The description of a folder's graphs; empty if there are none."""
    path = folder.path / GRAPHS
    if not path.is_file():
        return {}
    again = f"export the model again: headsync export {folder.path} {folder.path}"
    try:
        described = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); {again}") from None
    if not isinstance(described, dict) or not isinstance(described.get("weights"), dict):
        raise ModelError(f"{path}: does not describe the graphs; {again}")
    return described


def load_engine(folder: ModelFolder, threads: int = 1, engine: str = "auto") -> Engine:
    """The engine for a model folder; "auto": ONNX Runtime if it has graphs, else PyTorch."""
    if engine not in ENGINES:
        raise nearest_name("engine", engine, ENGINES)
    exported = (folder.path / GRAPHS).is_file()
    if engine == "torch" or (engine == "auto" and not exported):
        try:
            from headsync.engine.torch import TorchEngine
        except ModelError as error:
            export = f"headsync export {folder.path} {folder.path}"
            raise ModelError(
                f"{folder.path}: {error}, or export the model on a computer with PyTorch: {export}"
            ) from None
        return TorchEngine.load(folder, threads)
    if not exported:
        raise ModelError(f"{folder.path}: there are no graphs; write them: headsync export {folder.path} {folder.path}")
    from headsync.engine.onnx import OnnxEngine

    return OnnxEngine.load(folder, threads)
