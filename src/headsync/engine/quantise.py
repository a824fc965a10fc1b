"""Int8 models: products with weights are computed with 8-bit integers, everything else in float32.

Weights are quantised once, with a scale for each output. They use 7 of the 8 bits: where a processor multiplies 8-bit
numbers in pairs (AVX2), sums of two products of full range would overflow. Activations are quantised at run time, with
a scale for each vector, so that the scales of a row do not depend on its batch. Convolutions, norms, attention, the
table of positions and the whole decoder stay in float32.

The weights of such a model are those of its graphs, each under the graph's name, instead of the network's.

Shapes: K inputs and N outputs of a product.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from headsync.model_folder import Weights

QUANTISED = ("encode",)  # not the decoder, whose sums over padded frames differ in the last bit
OPERATIONS = ("MatMul", "Gemm")
WEIGHT_LEVELS, ACTIVATION_LEVELS = 63, 127
SMALLEST = 1e-30  # in place of a range of 0
CONSTANTS = (
    numpy_helper.from_array(np.array(SMALLEST, np.float32), "int8_smallest"),
    numpy_helper.from_array(np.array(ACTIVATION_LEVELS, np.float32), "int8_levels"),
    numpy_helper.from_array(np.array(128, np.float32), "int8_middle"),
    numpy_helper.from_array(np.array(128, np.uint8), "int8_zero"),
)
SMALL_BYTES = 1024  # smaller weights stay in the graph


def with_weights(graph: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """The graph with its weights inside."""
    for tensor in graph.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return graph


def quantised(name: str, graph: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """Quantise a graph that holds its weights; returns the graph without weights, and the weights."""
    if name in QUANTISED:
        with tempfile.TemporaryDirectory() as folder:
            graph = _in_int8(graph, Path(folder))
    return _apart(name, graph)


def _in_int8(graph: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The graph with every product of activations and a weight in 8-bit integers."""
    graph = _folded(graph, folder)
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    nodes, added, replaced = list[onnx.NodeProto](), list(CONSTANTS), set[str]()
    for node in graph.graph.node:
        if node.op_type not in OPERATIONS or node.input[1] not in weights:
            nodes.append(node)
            continue
        name = node.input[1]
        if name not in replaced:
            weight_KN = numpy_helper.to_array(weights[name])
            is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
            added += _quantised_weight(name, weight_KN.T if is_transposed else weight_KN)
            replaced.add(name)
        nodes += _integer_product(node)
    kept = [tensor for tensor in graph.graph.initializer if tensor.name not in replaced]
    del graph.graph.node[:], graph.graph.initializer[:]
    graph.graph.node.extend(nodes)
    graph.graph.initializer.extend([*kept, *added])
    return graph


def _folded(graph: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The graph with its weights transposed beforehand."""
    onnx.save(graph, folder / "whole.onnx")
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath, settings.log_severity_level = str(folder / "folded.onnx"), 3
    ort.InferenceSession(folder / "whole.onnx", settings, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "folded.onnx")


def _quantised_weight(name: str, weight_KN: npt.NDArray[np.float32]) -> list[onnx.TensorProto]:
    """A weight in 7 bits and its scales."""
    scale_N = np.maximum(np.abs(weight_KN).max(0) / WEIGHT_LEVELS, SMALLEST).astype(np.float32)
    integers_KN = np.ascontiguousarray(np.round(weight_KN / scale_N).astype(np.int8))
    scale = numpy_helper.from_array(scale_N / np.float32(ACTIVATION_LEVELS), f"{name}_scale")
    return [numpy_helper.from_array(integers_KN, f"{name}_int8"), scale]


def _integer_product(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """x W, or x W + b, with x in 8 bits by the largest magnitude of each vector."""
    x, weight, *bias = node.input
    out = node.output[0]
    steps = [
        ("Abs", [x], "magnitude"),
        ("ReduceMax", [f"{out}_magnitude"], "largest"),
        ("Max", [f"{out}_largest", "int8_smallest"], "range"),
        ("Div", [x, f"{out}_range"], "fraction"),
        ("Mul", [f"{out}_fraction", "int8_levels"], "level"),
        ("Round", [f"{out}_level"], "rounded"),
        ("Add", [f"{out}_rounded", "int8_middle"], "positive"),
        ("Cast", [f"{out}_positive"], "integers"),
        ("MatMulInteger", [f"{out}_integers", f"{weight}_int8", "int8_zero"], "product"),
        ("Cast", [f"{out}_product"], "float"),
        ("Mul", [f"{out}_float", f"{out}_range"], "ranged"),
        ("Mul", [f"{out}_ranged", f"{weight}_scale"], "scaled"),
    ]
    nodes = [helper.make_node(kind, inputs, [f"{out}_{name}"]) for kind, inputs, name in steps]
    nodes[1].attribute.extend([helper.make_attribute("axes", [-1]), helper.make_attribute("keepdims", 1)])
    nodes[7].attribute.append(helper.make_attribute("to", onnx.TensorProto.UINT8))
    nodes[9].attribute.append(helper.make_attribute("to", onnx.TensorProto.FLOAT))
    if bias:
        nodes.append(helper.make_node("Add", [nodes[-1].output[0], *bias], [out]))
    else:
        nodes[-1].output[0] = out
    return nodes


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
        weights[tensor.name] = _smallest(value)
        for content in ("raw_data", "float_data", "int32_data", "int64_data"):
            tensor.ClearField(content)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.safetensors")
    for node in graph.graph.node:
        for place, given in enumerate(node.input):
            node.input[place] = names.get(given, given)
    return graph, weights


def _smallest(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers in half precision if that is exact; loading restores single precision."""
    if value.dtype != np.float32 or np.abs(value).max() > np.finfo(np.float16).max:
        return value
    half = value.astype(np.float16)
    return half if np.array_equal(half, value) else value
