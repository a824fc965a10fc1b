"""Import of Moonshine's weights into a headsync model.

Moonshine is a family of attention encoder-decoders on samples (Useful Sensors, MIT licence). Three things change: the
front end's norm over the whole recording becomes a running level, pairs of states become encoder frames (the mean of
both at first), and CTC is added, whose output layer is the embedding. An imported model is therefore a
start for training. All other parts are compared with the original.

Shapes: E width, D head width, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from headsync._atomic_write import write_atomically
from headsync.config import Config, DataConfig, DecoderConfig, DecodingConfig, EncoderConfig, NetworkConfig
from headsync.errors import DataError, ModelError
from headsync.frontend.features import Statistics
from headsync.frontend.frame_rate import SAMPLE_RATE
from headsync.model_folder import CARD, WEIGHTS, Weights, checksummed, save_folder
from headsync.nn.model import Model
from headsync.nn.rotary import rotated_entries
from headsync.nn.rotary_encoder import RotaryEncoder
from headsync.text.vocabulary import Vocabulary

try:
    import onnx
    from onnx import numpy_helper
except ModuleNotFoundError:
    raise ModelError("onnx is not installed, and weights are read with it; pip install 'headsync[train]'") from None

CARD_TEXT = """\
# Moonshine, imported

The weights of a Moonshine model by Useful Sensors ({layers} encoder layers, width {width}; MIT licence if English),
imported as a start for training. CTC is untrained, and the decoder does not know frames of 48 ms yet: adapt the model
before you use it, and keep the notice of the licence.
"""

ENCODER, DECODER, TOKENIZER = "encoder_model.onnx", "decoder_model_merged.onnx", "tokenizer.bin"
HEADS = 8  # of tiny and base
BLANK, START, END = 0, 1, 2  # rows of the embedding; the blank uses the row of Moonshine's padding
MOST_DIFFERENCE = 1e-4  # of states and of logits, relative to the largest
PROJECTIONS = ("proj.MatMul", "dense.MatMul", "fc1.MatMul", "fc2.MatMul")

OF_FRONT = {"conv1": "first", "conv2": "second", "conv3": "third", "groupnorm": ""}
OF_ENCODER_LAYER = {
    "input_layernorm": "norm",
    "self_attn.dense": "out",
    "post_attention_layernorm": "feedforward.norm",
    "mlp.fc1": "feedforward.first",
    "mlp.fc2": "feedforward.second",
}
OF_DECODER_LAYER = {
    "input_layernorm": "norm_self",
    "self_attn.dense": "self_attention.out",
    "post_attention_layernorm": "norm_cross",
    "encoder_attn.q_proj": "cross.query",
    "encoder_attn.k_proj": "cross.key",
    "encoder_attn.v_proj": "cross.value",
    "encoder_attn.dense": "cross.out",
    "final_layernorm": "feedforward.norm",
    "mlp.up_proj": "feedforward.first",
    "mlp.down_proj": "feedforward.second",
}


def import_moonshine(source: Path, out: Path) -> float:
    """Write a model folder from the float graphs in a folder; returns the largest difference to these graphs."""
    encoder, decoder = graph_weights(source / ENCODER), graph_weights(source / DECODER)
    vocabulary, rows = _vocabulary(_beside(source, TOKENIZER))
    config = _config(encoder, decoder)
    model = Model(config, config.columns, vocabulary.size).eval()
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    state |= encoder_weights(encoder, HEADS) | decoder_weights(decoder, HEADS, rows)
    load(model, state, source)
    difference = max(_encoder_difference(model, source), _decoder_difference(model, source, rows))
    if not difference <= MOST_DIFFERENCE:
        raise ModelError(
            f"{source}: the imported network differs from the graphs by {difference:.1e}, so they are not a known "
            "Moonshine model; use the float graphs of Moonshine tiny or base"
        )
    write_model(out, config, vocabulary, model)
    write_atomically(out / CARD, CARD_TEXT.format(layers=config.encoder.layers, width=config.network.width).encode())
    return difference


def write_model(out: Path, config: Config, vocabulary: Vocabulary, model: Model) -> None:
    """Write a model folder, without graphs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{out}: cannot be created ({error.strerror}); name another folder") from None
    with checksummed(out):
        save_folder(out, config, vocabulary, Statistics.identity(config.columns))
        save_file(model.state_dict(), out / WEIGHTS)


def load(model: Model, weights: Weights, source: Path) -> None:
    try:
        model.load_state_dict({name: torch.tensor(x) for name, x in weights.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{source}: the weights do not fit the network ({reason}); use those of one model") from None


def encoder_weights(weights: Weights, heads: int) -> Weights:
    """The encoder's weights under our names."""
    found = {
        ".".join(("encoder.front", *filter(None, (name, kind)))): weights[f"{theirs}.{kind}"]
        for theirs, name in OF_FRONT.items()
        for kind in ("weight", "bias")
        if f"{theirs}.{kind}" in weights
    }
    for n in range(_layers(weights)):
        layer, ours = _layer(weights, n), f"encoder.layers.{n}"
        found |= _renamed(layer, OF_ENCODER_LAYER, ours)
        found[f"{ours}.query_key_value.weight"] = _query_key_value(layer, heads)
    return found | {"encoder.norm.weight": _of(weights, "layer_norm.weight")}


def decoder_weights(weights: Weights, heads: int, rows: Sequence[int]) -> Weights:
    """The decoder's weights under our names, with these rows of its embedding (`token_rows`)."""
    found: Weights = {"decoder.embedding.weight": _of(weights, "embed_tokens.weight")[list(rows)]}
    for n in range(_layers(weights)):
        layer, ours = _layer(weights, n), f"decoder.stack.{n}"
        found |= _renamed(layer, OF_DECODER_LAYER, ours)
        found[f"{ours}.self_attention.query_key_value.weight"] = _query_key_value(layer, heads)
        width = len(layer["encoder_attn.k_proj.weight"])
        found[f"{ours}.cross.key.bias"] = layer.get("key_bias", np.zeros(width, np.float32)).reshape(-1)
        if "energy_bias" in layer:
            found[f"{ours}.cross.mechanism.energy_bias"] = layer["energy_bias"]
    return found | {"decoder.norm.weight": _of(weights, "norm.weight")}


def token_rows(pieces: Sequence[int]) -> list[int]:
    """Rows of Moonshine's embedding in the order of ours: blank, pieces, end, and start as an input."""
    return [BLANK, *pieces, END, START]


def _layers(weights: Weights) -> int:
    return len({name.split(".")[1] for name in weights if name.startswith("layers.")})


def _layer(weights: Weights, n: int) -> Weights:
    prefix = f"layers.{n}."
    return {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}


def _renamed(layer: Weights, names: dict[str, str], ours: str) -> Weights:
    parts = ((theirs, new, kind) for theirs, new in names.items() for kind in ("weight", "bias"))
    return {f"{ours}.{new}.{kind}": layer[f"{name}.{kind}"] for name, new, kind in parts if f"{name}.{kind}" in layer}


def _query_key_value(layer: Weights, heads: int) -> npt.NDArray[Any]:
    """One projection of three; Moonshine rotates pairs of adjacent entries, here a pair spans two halves."""
    q, k, v = (_of(layer, f"self_attn.{name}_proj.weight") for name in "qkv")
    size = len(q) // heads
    rotated = rotated_entries(size)
    order = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, size)])
    rows = (np.arange(heads)[:, None] * size + order).reshape(-1)
    return np.concatenate([q[rows], k[rows], v])


def _of(weights: Weights, name: str) -> npt.NDArray[Any]:
    if name not in weights:
        raise ModelError(f"{name} is missing, so these are not the weights of a Moonshine model; download them again")
    return weights[name]


def graph_weights(path: Path) -> Weights:
    """The weights of a graph by the names of its parameters, those of linear layers as (outputs, inputs)."""
    graph = _graph(path)
    values, nodes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}, list(graph.node)
    for branch in (a.g for node in graph.node for a in node.attribute if a.name == "else_branch"):
        values |= {t.name: numpy_helper.to_array(t) for t in branch.initializer}  # the decoder without a cache
        nodes = list(branch.node)
    named = {n.removesuffix("_merged_0"): x for n, x in values.items() if n.endswith((".weight", ".bias", "_merged_0"))}
    for node in nodes:
        place = node.name.strip("/").replace("/", ".")
        if node.op_type == "MatMul" and place.endswith(PROJECTIONS) and node.input[1] in values:
            named[place.removesuffix(".MatMul") + ".weight"] = values[node.input[1]].T
        elif place in ("groupnorm.Mul", "groupnorm.Add"):
            named[f"groupnorm.{'weight' if place.endswith('Mul') else 'bias'}"] = values[node.input[1]][:, 0]
    found = {n.removeprefix("model.decoder."): x for n, x in named.items() if "onnx::" not in n}
    wanted = "conv1.weight" if path.name == ENCODER else "embed_tokens.weight"
    if wanted not in found or "layers.0.self_attn.q_proj.weight" not in found:
        raise ModelError(f"{path}: not a float graph of Moonshine: {wanted} or layers are missing; download it again")
    return found


def _graph(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file; name a folder with {ENCODER}, {DECODER} and {TOKENIZER}")
    try:
        return onnx.load(str(path)).graph
    except Exception as error:  # protocol buffers have their own error types
        reason = " ".join(str(error).split())[:100]
        raise ModelError(f"{path}: cannot be read as ONNX ({reason}); download it again") from None


def _beside(source: Path, name: str) -> Path:
    """A file in a folder or in its parent."""
    return next((path for path in (source / name, source.parent / name) if path.is_file()), source / name)


def _vocabulary(path: Path) -> tuple[Vocabulary, list[int]]:
    """The pieces of a tokenizer that are text, and the rows of the embedding for them."""
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file; copy the tokenizer that belongs to the weights there")
    numbers: dict[str, int] = {}
    for number, piece in enumerate(_pieces(path.read_bytes(), path)):
        try:
            text = piece.decode()
            Vocabulary("bpe", (text,))
        except (UnicodeDecodeError, DataError):
            continue  # a byte, a control token, or a piece with a space inside
        if number > END and not text.startswith("<"):
            numbers.setdefault(text, number)
    return Vocabulary("bpe", tuple(numbers)), token_rows(list(numbers.values()))


def _pieces(contents: bytes, path: Path) -> list[bytes]:
    """Each piece is stored after its length in bytes; lengths of 128 and more take two bytes."""
    pieces, place = [], 0
    try:
        while place < len(contents):
            length = contents[place]
            place += 1
            if length >= 128:
                length += (contents[place] - 1) * 128
                place += 1
            if place + length > len(contents):
                raise IndexError
            pieces.append(contents[place : place + length])
            place += length
    except IndexError:
        raise ModelError(f"{path}: damaged: it ends inside a piece; download it again") from None
    return pieces


def _config(encoder: Weights, decoder: Weights) -> Config:
    width, feedforward = len(encoder["conv1.weight"]), len(_of(encoder, "layers.0.mlp.fc1.weight"))
    network = NetworkConfig(width, HEADS, feedforward, family="moonshine")
    return Config(
        network=network,
        encoder=EncoderConfig(_layers(encoder), 215, 8, 8, "full"),
        decoder=DecoderConfig(_layers(decoder), "softmax", frame_positions=False),
        decoding=DecodingConfig(ctc_weight=0.0, policy="published"),
        data=DataConfig(tokens="bpe"),
    )


@torch.no_grad()
def original_states(encoder: RotaryEncoder, samples_BN: Tensor) -> Tensor:
    """States as Moonshine computes them: normalised over the whole recording, in full context, one every 24 ms."""
    front = encoder.front
    x_BEN = F.group_norm(front.first(samples_BN.unsqueeze(1)).tanh(), 1, front.weight, front.bias)
    x_BSE = front.states(x_BEN)
    return encoder.states(x_BSE, torch.ones(x_BSE.shape[:2], dtype=torch.bool))


def _sound() -> Tensor:
    """Two seconds of noise, modulated at the rate of syllables."""
    samples = SAMPLE_RATE * 2
    noise = torch.randn(samples, generator=torch.Generator().manual_seed(1))
    return 0.1 * (noise * (1 + torch.sin(torch.arange(samples) * (8 * torch.pi / SAMPLE_RATE))))[None]


def _encoder_difference(model: Model, source: Path) -> float:
    assert isinstance(model.encoder, RotaryEncoder)
    expected = _run(source / ENCODER, {"input_values": _sound().numpy()})[0]
    return _difference(original_states(model.encoder, _sound()).numpy(), expected)


@torch.no_grad()
def _decoder_difference(model: Model, source: Path, rows: Sequence[int]) -> float:
    width, classes = model.decoder.network.width, len(rows) - 1
    states = torch.randn(1, 40, width, generator=torch.Generator().manual_seed(2))
    ours = torch.tensor([[classes - 1, *range(1, min(9, classes - 1))]])
    theirs = np.array([[START, *(rows[int(token)] for token in ours[0, 1:])]])
    logits, _ = model.decoder.whole(ours, states, torch.full(ours.shape, states.shape[1]))
    expected = _run(source / DECODER, {"input_ids": theirs, "encoder_hidden_states": states.numpy()})[0]
    return _difference(logits.numpy(), expected[..., list(rows[:-1])])


def _difference(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def _run(path: Path, given: dict[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Run a graph of Moonshine without a cache."""
    try:
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        for wanted in session.get_inputs():
            if wanted.name == "use_cache_branch":
                given[wanted.name] = np.array([False])
            elif wanted.name not in given:  # keys and values of the past: none
                sizes = [size if isinstance(size, int) else 0 for size in wanted.shape]
                given[wanted.name] = np.zeros((1, *sizes[1:]), np.float32)
        return session.run(None, given)
    except Exception as error:  # ONNX Runtime's errors have no common base class
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{path}: cannot be run ({reason}); download the float graphs of Moonshine again") from None
