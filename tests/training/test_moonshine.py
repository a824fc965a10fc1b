"""The import of Moonshine: what is written computes what the graphs compute; other files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from typer.testing import CliRunner

import moonshine_graphs
from headsync import ModelError, Recognizer
from headsync.cli.app import app
from headsync.engine.torch import TorchEngine
from headsync.model_folder import load_folder
from headsync.nn.rotary_encoder import RotaryEncoder
from headsync.training.moonshine import DECODER, ENCODER, TOKENIZER, import_moonshine, original_states


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moonshine")
    moonshine_graphs.write(folder)
    return folder


@pytest.fixture
def copied(source: Path, tmp_path: Path) -> Path:
    for name in (ENCODER, DECODER, TOKENIZER):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    return tmp_path


def test_an_imported_model_is_the_graphs_and_streams(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["import", "moonshine", str(source), str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    folder = load_folder(tmp_path / "model")
    assert folder.vocabulary.tokens == ("▁", "a", "b", "▁a", "ab")
    encoder = TorchEngine.load(folder, 1).model.encoder
    assert isinstance(encoder, RotaryEncoder)
    samples = 0.1 * np.random.default_rng(3).standard_normal((1, 20_000)).astype(np.float32)
    expected = ort.InferenceSession(source / ENCODER).run(None, {"input_values": samples})[0]
    np.testing.assert_allclose(original_states(encoder, torch.from_numpy(samples)), expected, rtol=0, atol=1e-4)
    Recognizer.load(folder.path).transcribe(samples[0], 16_000)


@pytest.mark.parametrize("name", [ENCODER, DECODER])
def test_a_damaged_graph(copied: Path, name: str) -> None:
    (copied / name).write_bytes((copied / name).read_bytes()[:-1000])
    with pytest.raises(ModelError, match="cannot be read as ONNX") as error:
        import_moonshine(copied, copied / "out")
    assert str(error.value).startswith(f"{copied / name}: ")
    assert not (copied / "out").exists()


def test_a_damaged_tokenizer(copied: Path) -> None:
    (copied / TOKENIZER).write_bytes((copied / TOKENIZER).read_bytes()[:-1])
    with pytest.raises(ModelError, match="ends inside a piece; download it again"):
        import_moonshine(copied, copied / "out")


@pytest.mark.parametrize("name", [ENCODER, DECODER, TOKENIZER])
def test_a_missing_file(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(ModelError, match="there is no such file"):
        import_moonshine(copied, copied / "out")


@pytest.mark.parametrize("name", [ENCODER, DECODER])
def test_a_graph_of_another_model(copied: Path, name: str) -> None:
    other = Path(__file__).parents[2] / "src/headsync/models/digits-en/embed.onnx"
    graph = onnx.load(other, load_external_data=False)
    for tensor in graph.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(list(tensor.dims), np.float32), tensor.name))
    onnx.save(graph, copied / name)
    with pytest.raises(ModelError, match="not a float graph of Moonshine"):
        import_moonshine(copied, copied / "out")


def test_a_network_that_computes_something_else_is_refused(copied: Path) -> None:
    """The same names and shapes, with another activation."""
    graph = onnx.load(copied / ENCODER)
    next(node for node in graph.graph.node if node.op_type == "Tanh").op_type = "Sigmoid"
    onnx.save(graph, copied / ENCODER)
    with pytest.raises(ModelError, match="differs from the graphs by"):
        import_moonshine(copied, copied / "out")
    assert not (copied / "out").exists()
