"""The fast engine: ONNX graphs run by ONNX Runtime, without PyTorch.

`headsync export` writes `embed.onnx`, `encode.onnx`, `places.onnx` and `decode.onnx`, which contain no weights, and
`graphs.json`, which describes the network. Weights are read from `weights.safetensors`.

Shapes as in `headsync.engine`, and P tokens in the pool (`headsync.engine.kv_pool`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from headsync.engine import Decoded, Encoded, IntArray, Memory, State, Window, graphs_of
from headsync.engine.kv_pool import Past
from headsync.errors import ModelError
from headsync.frontend.audio import FloatArray
from headsync.model_folder import GRAPHS, ModelFolder, load_weights

NAMES = ("embed", "encode", "places", "decode")
SIZES = {  # settings that graphs depend on
    "network": ("family", "width", "heads", "feedforward", "kernels"),
    "encoder": ("layers", "left_frames", "centre_frames", "right_frames", "mode"),
    "decoder": ("layers", "attention", "heads", "normalised"),
}
FORMAT = 2  # of the graphs; since 2 each row has a threshold
PLACES_AT_ONCE = 64  # frames by which the table of places grows
Arrays = dict[str, Any]


def graph_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.onnx"


def describe(folder: ModelFolder, int8: bool = False) -> dict[str, Any]:
    """The settings that graphs depend on: if they are equal, only weights can differ."""
    config = folder.config
    sizes = {
        f"{table}.{name}": getattr(getattr(config, table), name) for table, names in SIZES.items() for name in names
    }
    if config.encoder.varied_frames:  # of any size
        sizes |= {"encoder.centre_frames": "any", "encoder.right_frames": "any"}
    return {**sizes, "features": config.columns, "classes": folder.vocabulary.size, "int8": int8}


class OnnxEngine:
    """Loaded graphs; every call is a function of its arguments, and threads may call at the same time."""

    def __init__(
        self, sessions: dict[str, ort.InferenceSession], folder: ModelFolder, described: dict[str, Any]
    ) -> None:
        self._embed, self._encode, self._places, self._decode = (sessions[name] for name in NAMES)
        self._width, self._decoder, self._heads = folder.config.network.width, folder.config.decoder, described["heads"]
        self._takes = [given.name for given in self._decode.get_inputs()]
        self._gives = [given.name for given in self._decode.get_outputs()]
        self._states = described["states"]
        self._encoder_takes = [given.name for given in self._encode.get_inputs()]
        self._table: tuple[FloatArray, FloatArray] | None = None
        self._lock = threading.Lock()  # around the table of places

    @classmethod
    def load(cls, folder: ModelFolder, threads: int) -> OnnxEngine:
        described, weights = _checked(folder), load_weights(folder.weights)
        names = described["weights"]
        sessions = {
            name: _session(graph_file(folder.path, name), _some(weights, names[name], folder.weights), threads)
            for name in NAMES
        }
        return cls(sessions, folder, described)

    def start_front(self, batch: int) -> State:
        return _zeros(self._states["embed"], batch)

    def embed(self, features_BTF: FloatArray, state: State) -> tuple[FloatArray, State]:
        embedded, *after = self._embed.run(None, {"features": features_BTF, **_numbered(state)})
        return embedded, tuple(after)

    def start_encoder(self, batch: int) -> State:
        return _zeros(self._states["encode"], batch)

    def encode(self, x_BWE: FloatArray, length_B: IntArray, state: State, centre: int) -> Encoded:
        given = {"x": x_BWE, "length": length_B, "centre": np.array(centre), **_numbered(state)}
        log_ctc, keys, values, *after = self._encode.run(None, _only(given, self._encoder_takes))
        return Encoded(log_ctc, Memory(self._split(keys), self._split(values)), tuple(after))

    def place(self, memory: Memory, first: int) -> Memory:
        if not self._decoder.frame_positions:
            return memory
        end = first + memory.keys_BNHTD.shape[3]
        parts = zip(memory, self._places_up_to(end), strict=True)
        return Memory(*(part + self._split(table[None, :, first:end]) for part, table in parts))

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        past = Past.start(batch, self._decoder.layers, self._width)
        threshold_B = np.full(batch, self._decoder.threshold if threshold is None else threshold, np.float32)
        return past, tuple(_zeros(layer, batch) for layer in self._states["decode"]), threshold_B

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        past, states, threshold_B = state
        past, frames = past.compacted(), memory.keys_BNHTD.shape[3]
        given = {"tokens": tokens_B, "place": past.written_B, "threshold": threshold_B}
        given |= dict(zip(("limit", "frames", "final"), window, strict=True))
        given |= self._of_pool(*past.visible()) | _of_memory(memory)
        given |= {f"state_{n}_{i}": x for n, layer in enumerate(states) for i, x in enumerate(layer)}
        found = dict(zip(self._gives, self._decode.run(self._gives, _only(given, self._takes)), strict=True))
        weights_BHT = found["weights"][..., :frames]
        after = tuple(tuple(found[f"state_{n}_{i}_after"] for i in range(len(layer))) for n, layer in enumerate(states))
        past = past.appended(found["own"])
        return Decoded(found["log_p"], found["end"], found["ready"], weights_BHT, (past, after, threshold_B))

    def _of_pool(self, both: FloatArray, hidden_BP: FloatArray) -> Arrays:
        layers = both.reshape(*both.shape[:3], self._heads, -1)
        pool = {f"pool_{name}_{n}": layers[part, n]
                for part, name in enumerate(("keys", "values")) for n in range(self._decoder.layers)}  # fmt: skip
        return {"hidden": hidden_BP, **pool}

    def _split(self, x_BNTE: FloatArray) -> FloatArray:
        """Move heads before frames in the shape; the memory layout keeps frames first, so that they can grow."""
        return x_BNTE.reshape(*x_BNTE.shape[:3], self._heads, -1).transpose(0, 1, 3, 2, 4)

    def _places_up_to(self, end: int) -> tuple[FloatArray, FloatArray]:
        """The places of frames, as keys and values (N, T, E); computed ahead for several frames at a time."""
        with self._lock:
            if self._table is None or self._table[0].shape[1] < end:
                count = -(-end // PLACES_AT_ONCE) * PLACES_AT_ONCE
                keys, values = self._places.run(None, {"place": np.arange(count)})
                self._table = keys, values
            return self._table


def _of_memory(memory: Memory) -> Arrays:
    """For each layer keys and values as (T, M, H, D): contiguous if the memory is one row."""
    parts = {"keys": memory.keys_BNHTD, "values": memory.values_BNHTD}
    if memory.keys_BNHTD.shape[3] == 0:  # graphs need a frame; windows exclude it
        parts = {name: np.zeros_like(part, shape=(*part.shape[:3], 1, part.shape[4])) for name, part in parts.items()}
    return {
        f"memory_{name}_{n}": part[:, n].transpose(2, 0, 1, 3)
        for name, part in parts.items() for n in range(part.shape[1])
    }  # fmt: skip


def _numbered(state: State) -> Arrays:
    """The leaves of a state by the names of a graph's inputs."""
    return {f"state_{i}": leaf for i, leaf in enumerate(state)}


def _only(given: Arrays, names: Any) -> Arrays:
    """The inputs of a graph; a mechanism that does not use a value has no input for it."""
    return {name: given[name] for name in names}


def _zeros(leaves: Any, batch: int) -> State:
    """The state before the first frame or token."""
    return tuple(np.zeros((batch, *shape), kind) for shape, kind in leaves)


def _checked(folder: ModelFolder) -> dict[str, Any]:
    """The description of the graphs in a folder; raises if they do not fit the rest of it."""
    again = f"export the model again: headsync export {folder.path} {folder.path}"
    described = {"decoder.normalised": False, **graphs_of(folder)}  # graphs of other models do not have it
    if described.get("format") != FORMAT:
        raise ModelError(f"{folder.path}: the graphs were written by another version of headsync; {again}")
    for name, value in describe(folder, bool(described.get("int8"))).items():
        if described.get(name) != value:
            raise ModelError(
                f"{folder.path}: the graphs have {name} = {described.get(name)!r}, the rest of the model has "
                f"{value!r}; correct it, or {again}"
            )
    for name in NAMES:
        if not graph_file(folder.path, name).is_file():
            raise ModelError(f"{folder.path}: {name}.onnx is missing; {again}")
        if name not in described["weights"]:
            raise ModelError(f"{folder.path / GRAPHS}: does not name the weights of {name}.onnx; {again}")
    return described


def _some(weights: dict[str, Any], names: Sequence[str], path: Path) -> dict[str, Any]:
    """The weights of one graph."""
    if missing := [name for name in names if name not in weights]:
        raise ModelError(
            f"{path}: {missing[0]} is missing, so the file belongs to another model; export the model again"
        )
    return {name: weights[name] for name in names}


def _session(path: Path, weights: dict[str, Any], threads: int) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    settings.log_severity_level = 3  # errors
    for place in ("intra_op", "inter_op"):
        settings.add_session_config_entry(f"session.{place}.allow_spinning", "0")
    names = list(weights)
    settings.add_external_initializers(names, [ort.OrtValue.ortvalue_from_numpy(weights[name]) for name in names])
    try:
        return ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common base class
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{path}: damaged or of another model ({reason}); export the model again") from None
