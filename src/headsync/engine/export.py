"""Export of a trained model to ONNX graphs, and the check that both engines agree.

Graphs contain no weights. These stay in `weights.safetensors` under their own names and are inserted when a model is
loaded, so that a model that is trained further keeps its graphs. An int8 model requires separate weights; see
`headsync.engine.quantise`. Weights in half precision take half the space and are converted to single precision.

Graphs are traced. Mechanisms therefore use masks, never branches on data.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor, nn

from headsync._atomic_write import copy_atomically, write_atomically
from headsync.engine.onnx import FORMAT, NAMES, OnnxEngine, describe, graph_file
from headsync.engine.onnx_graphs import Decode, Embed, Encode, Places
from headsync.engine.torch import TorchEngine
from headsync.engine.verify import Agreement, compare
from headsync.errors import ModelError
from headsync.model_folder import (
    CARD,
    CONFIG,
    GRAPHS,
    LANGUAGE_MODEL,
    STATISTICS,
    VOCABULARY,
    WEIGHTS,
    ModelFolder,
    checksummed,
    load_folder,
    load_weights,
)
from headsync.nn.model import Model

try:
    import onnx
    from onnx import helper, numpy_helper

    from headsync.engine.quantise import quantised, with_weights
except ModuleNotFoundError:
    raise ModelError("onnx is not installed, and models are exported with it; pip install 'headsync[train]'") from None

OPSET = 17  # the first with LayerNormalization
Axes = dict[str, dict[int, str]]


class Traced(NamedTuple):
    """A graph before it is written: the traced module, its arguments, and the names of inputs and outputs."""

    module: nn.Module
    arguments: tuple[Any, ...]
    inputs: list[str]
    outputs: list[str]
    axes: Axes  # which sizes are free


def export_model(folder: ModelFolder, out: Path, int8: bool = False, half: bool = False) -> Agreement:
    """Write a model folder with graphs, or graphs alone into the model's own folder; returns the engines' agreement."""
    if int8 and half:
        raise ModelError("weights have either 8 or 16 bits; choose one of int8 and half")
    reference = TorchEngine.load(folder, 1)
    same = out.resolve() == folder.path.resolve()
    if (int8 or half) and same:
        kind = "int8" if int8 else "half precision"
        raise ModelError(f"{out}: a model in {kind} requires separate weights; name another folder for it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{out}: cannot be created ({error.strerror}); name another folder") from None
    with checksummed(out):
        if not same:
            _copy(folder.path, out)
        if half:
            write_atomically(out / WEIGHTS, save(_in_half(load_weights(folder.weights), folder.weights)))
        write_graphs(folder, out, int8)
    exported = OnnxEngine.load(load_folder(out), 1)
    return compare(reference, exported, folder.config, folder.vocabulary.size)


def write_graphs(folder: ModelFolder, out: Path, int8: bool = False) -> None:
    """Write all graphs of a model and their description; in int8 also their weights."""
    columns = folder.config.columns
    model = _with_other_weights(Model(folder.config, columns, folder.vocabulary.size))
    graphs = {name: _named_as_saved(_exported(traced)) for name, traced in trace(model, columns).items()}
    if int8:
        graphs = _in_int8(graphs, folder.weights, out)
    else:
        graphs = {name: _without_weights(graph) for name, graph in graphs.items()}
    for name, graph in graphs.items():
        write_atomically(graph_file(out, name), graph.SerializeToString())
    document = {
        "format": FORMAT,
        **describe(folder, int8),
        "heads": model.decoder.network.heads,
        "states": {
            "embed": _leaves(model.encoder.start_front(1)),
            "encode": _leaves(model.encoder.start(1)),
            "decode": [_leaves(state) for state in model.decoder.start(1).mechanisms],
        },
        "weights": {name: _outside(graph) for name, graph in graphs.items()},
    }
    write_atomically(out / GRAPHS, (json.dumps(document, indent=1) + "\n").encode())


def _in_half(weights: dict[str, Any], path: Path) -> dict[str, Any]:
    with np.errstate(over="ignore"):
        halves = {name: each.astype(np.float16) for name, each in weights.items()}
    for name, each in halves.items():
        if not np.isfinite(each).all():
            raise ModelError(f"{path}: {name} is too large for half precision; export the model in single precision")
    return halves


def _in_int8(graphs: dict[str, onnx.ModelProto], weights: Path, out: Path) -> dict[str, onnx.ModelProto]:
    """The graphs in int8; writes their weights."""
    full, every, after = load_weights(weights), dict[str, Any](), {}
    for name, graph in graphs.items():
        after[name], own = quantised(name, with_weights(graph, full))
        every |= own
    write_atomically(out / WEIGHTS, save(every))
    return after


def _outside(graph: onnx.ModelProto) -> list[str]:
    """The names of the weights that a graph requires."""
    return [each.name for each in graph.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]


def _with_other_weights(model: Model) -> Model:
    """The model with random weights: the exporter merges equal weights, which may differ after further training."""
    source = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=source))
    return model


def _leaves(state: Sequence[Tensor]) -> list[tuple[list[int], str]]:
    """The shape, without the row axis, and the type of each part of a state."""
    return [(list(part.shape[1:]), str(part.dtype).removeprefix("torch.")) for part in state]


def trace(model: Model, columns: int) -> dict[str, Traced]:
    """The graphs by name, traced on arguments of small, different sizes."""
    traced = _embed(model, columns), _encode(model), _places(model), _decode(model)
    return dict(zip(NAMES, traced, strict=True))


def _embed(model: Model, columns: int) -> Traced:
    before, after = _state_names(model.encoder.start_front(2))
    axes: Axes = {name: {0: "rows"} for name in (*before, *after)}
    axes |= {"features": {0: "rows", 1: "feature_frames"}, "embedded": {0: "rows", 1: "frames"}}
    arguments = (torch.randn(2, 47, columns), *model.encoder.start_front(2))
    return Traced(Embed(model), arguments, ["features", *before], ["embedded", *after], axes)


def _encode(model: Model) -> Traced:
    config, rows = model.encoder.config, 2
    centre = 11 if config.mode == "full" else config.centre_frames
    window = 11 if config.mode == "full" else centre + config.right_frames
    x, state = torch.randn(rows, window, model.encoder.embedded_width), model.encoder.start(rows)
    before, after = _state_names(state)
    outputs = ["log_ctc", "keys", "values"]
    axes: Axes = {name: {0: "rows"} for name in ("x", "length", *before, *outputs, *after)}
    if config.mode == "full" or config.varied_frames:  # else the windows of all streams have one size
        axes["x"][1] = "window"
        axes["log_ctc"][1] = axes["keys"][2] = axes["values"][2] = "frames"
    arguments = (x, torch.full((rows,), window), torch.tensor(centre), *state)
    return Traced(Encode(model), arguments, ["x", "length", "centre", *before], outputs + after, axes)


def _state_names(state: Sequence[Tensor]) -> tuple[list[str], list[str]]:
    """Names of the leaves of a state before and after."""
    before = [f"state_{i}" for i in range(len(state))]
    return before, [f"{name}_after" for name in before]


def _places(model: Model) -> Traced:
    axes = {"place": {0: "frames"}, "keys": {1: "frames"}, "values": {1: "frames"}}
    return Traced(Places(model), (torch.arange(5),), ["place"], ["keys", "values"], axes)


def _decode(model: Model) -> Traced:
    decoder, rows, frames, written = model.decoder, 3, 7, 5
    heads, width = decoder.network.heads, decoder.network.width
    states = decoder.start(rows).mechanisms
    pool = [[torch.randn(written, heads, width // heads) for _ in range(2)] for _ in decoder.layers]
    memory = [[torch.randn(frames, 1, heads, width // heads) for _ in range(2)] for _ in decoder.attending]
    window = torch.tensor([3, 9, 5]), torch.full((rows,), frames), torch.tensor([False, True, False]), torch.ones(rows)
    arguments = torch.arange(rows), torch.arange(rows), window, torch.zeros(rows, written), pool, memory, states
    pools, memories = _pairs("pool", len(pool)), _pairs("memory", len(memory))
    before = [f"state_{n}_{i}" for n, state in enumerate(states) for i in range(len(state))]
    by_row = ["tokens", "place", "limit", "frames", "final", "threshold", "hidden"]
    inputs = [*by_row, *pools, *memories, *before]
    outputs = ["log_p", "end", "ready", "weights", "own", *(f"{name}_after" for name in before)]
    axes: Axes = {name: {0: "rows"} for name in (*by_row, *before, *outputs)}
    axes["hidden"][1] = "written"
    axes["weights"][2] = "memory_frames"
    axes |= {name: {0: "written"} for name in pools}
    axes |= {name: {0: "memory_frames", 1: "memories"} for name in memories}
    return Traced(Decode(model), arguments, inputs, outputs, axes)


def _pairs(name: str, count: int) -> list[str]:
    return [f"{name}_{part}_{n}" for n in range(count) for part in ("keys", "values")]


def _exported(traced: Traced) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the tracer: Python-visible sizes, and its deprecation
        torch.onnx.export(
            traced.module.eval(), traced.arguments, file,  # type: ignore[arg-type]
            input_names=traced.inputs, output_names=traced.outputs, dynamic_axes=traced.axes,
            opset_version=OPSET, do_constant_folding=False, dynamo=False,
        )  # fmt: skip
    return _one_source_of_sizes(onnx.load_from_string(file.getvalue()))


def _one_source_of_sizes(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Read sizes that are equal in all layers from the inputs of the first layer, so that they are computed once.

    Traced layers read sizes from their own inputs, after transposition. ONNX Runtime merges equal computations, but
    cannot see that sizes from different inputs are equal.
    """
    made_by = {name: node for node in graph.graph.node for name in node.output}
    added = []
    for node in graph.graph.node:
        if node.op_type != "Shape":
            continue
        source, axes = node.input[0], None
        while source in made_by and made_by[source].op_type in ("Transpose", "Identity"):
            turned = made_by[source]
            if turned.op_type == "Transpose":
                (order,) = (list(attribute.ints) for attribute in turned.attribute if attribute.name == "perm")
                axes = order if axes is None else [order[axis] for axis in axes]
            source = turned.input[0]
        group = re.sub(r"(keys|values)_\d+$", "keys_0", source)
        if group == source and not source.endswith("keys_0"):
            continue
        if axes is None:
            node.input[0] = group
            continue
        sizes, order_name = f"{node.output[0]}_sizes", f"{node.output[0]}_order"
        added += [
            (node, helper.make_node("Shape", [group], [sizes])),
            (node, helper.make_node("Constant", [], [order_name], value=numpy_helper.from_array(np.array(axes)))),
        ]
        node.op_type = "Gather"
        del node.attribute[:]
        node.input[:] = [sizes, order_name]
    nodes = list(graph.graph.node)
    for before, node in added:
        nodes.insert(nodes.index(before), node)
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    return graph


def _named_as_saved(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Every weight under its name in the weights file."""
    names = {tensor.name: tensor.name.removeprefix("model.") for tensor in graph.graph.initializer}
    for node in graph.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
        node.doc_string = ""
    for tensor in graph.graph.initializer:
        tensor.name = names[tensor.name]
    return graph


def _without_weights(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with the names and shapes of weights, without their values."""
    for tensor in graph.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=WEIGHTS)
    return graph


def _copy(source: Path, out: Path) -> None:
    for name in (WEIGHTS, CONFIG, VOCABULARY, STATISTICS, CARD):
        if (source / name).exists():
            copy_atomically(source / name, out / name)
    if (source / LANGUAGE_MODEL).is_dir():
        (out / LANGUAGE_MODEL).mkdir(exist_ok=True)
        for file in (source / LANGUAGE_MODEL).iterdir():
            copy_atomically(file, out / LANGUAGE_MODEL / file.name)
    elif (source / LANGUAGE_MODEL).exists():
        copy_atomically(source / LANGUAGE_MODEL, out / LANGUAGE_MODEL)
