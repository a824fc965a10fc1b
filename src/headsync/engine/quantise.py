"""A model in int8: the products with weights are of 8-bit numbers, everything else stays as it is.

Weights are quantised once, each output with a scale of its own and with one bit to spare: where a processor multiplies
8-bit numbers in pairs (AVX2), sums of two products of full range would overflow. Inputs are quantised as they come, by
their own range. Convolutions, norms, attention and the table of places stay in float32.

The weights of such a model are those of its graphs, each under the graph's name, in the place of the network's.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

QUANTISED = ("encode", "decode")
OPERATIONS = ["MatMul", "Gemm"]
SMALL_BYTES = 1024  # what is smaller stays in the graph

Weights = dict[str, npt.NDArray[Any]]


def with_weights(graph: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """A graph that holds its weights."""
    for tensor in graph.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return graph


def quantised(name: str, graph: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """A graph that holds its weights -> one in int8 that does not, and its weights."""
    if name in QUANTISED:
        with tempfile.TemporaryDirectory() as folder:
            graph = _in_int8(graph, Path(folder))
    return _apart(name, graph)


def _in_int8(graph: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    onnx.save(graph, folder / "whole.onnx")
    settings = ort.SessionOptions()  # weights that are turned before a product become weights that are turned already
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath, settings.log_severity_level = str(folder / "folded.onnx"), 3
    ort.InferenceSession(folder / "whole.onnx", settings, providers=["CPUExecutionProvider"])
    before = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it recommends what has just been done
    try:
        quantize_dynamic(
            folder / "folded.onnx", folder / "int8.onnx", op_types_to_quantize=OPERATIONS,
            weight_type=QuantType.QInt8, per_channel=True, reduce_range=True,
        )  # fmt: skip
    finally:
        logging.root.setLevel(before)
    return onnx.load(folder / "int8.onnx")


def _apart(name: str, graph: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """The graph and its weights, under names that begin with that of the graph."""
    weights: Weights = {}
    names = {}
    for tensor in graph.graph.initializer:
        value = np.ascontiguousarray(numpy_helper.to_array(tensor))
        if value.nbytes < SMALL_BYTES:
            continue
        names[tensor.name] = f"{name}/{tensor.name.lstrip('/')}"
        tensor.name = names[tensor.name]
        weights[tensor.name] = value
        for content in ("raw_data", "float_data", "int32_data", "int64_data"):
            tensor.ClearField(content)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.safetensors")
    for node in graph.graph.node:
        for place, given in enumerate(node.input):
            node.input[place] = names.get(given, given)
    return graph, weights
