"""The ONNX engine: what it is loaded from, what its states are, and that it needs no PyTorch."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save
from typer.testing import CliRunner

from contracts.test_engines import VOCABULARY, exported
from headsync import ModelError, Recognizer
from headsync.cli.app import app
from headsync.config import ConfigError
from headsync.engine import NO_LIMIT, Memory, Window, load_engine
from headsync.engine.check import compare
from headsync.engine.export import export_model
from headsync.engine.onnx import OnnxEngine
from headsync.engine.past import NOWHERE, SLACK, Past
from headsync.engine.torch import TorchEngine
from headsync.folder import GRAPHS, WEIGHTS, ModelFolder, load_folder, load_weights
from headsync.search.step import join_rows
from headsync.streaming import take_rows
from headsync.train.mean import mean_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return exported(tmp_path_factory.mktemp("model"))


@pytest.fixture
def copied(folder: ModelFolder, tmp_path: Path) -> ModelFolder:
    shutil.copytree(folder.path, tmp_path / "copy")
    return load_folder(tmp_path / "copy")


def memory(frames: int, rows: int = 1) -> Memory:
    noise = np.random.default_rng(frames).standard_normal((2, rows, 2, 2, frames, 8))
    return Memory(*noise.astype(np.float32))


def window(rows: int, frames: int) -> Window:
    return Window(np.full(rows, NO_LIMIT), np.full(rows, frames), np.ones(rows, bool))


def test_a_folder_with_graphs_runs_by_itself(folder: ModelFolder, copied: ModelFolder) -> None:
    assert isinstance(load_engine(folder), OnnxEngine)
    assert isinstance(load_engine(folder, engine="torch"), TorchEngine)
    (copied.path / GRAPHS).unlink()
    assert isinstance(load_engine(copied), TorchEngine)
    with pytest.raises(ModelError, match=r"no graphs; make them: headsync export .*"):
        load_engine(copied, engine="onnx")
    with pytest.raises(ConfigError, match='did you mean "torch"'):
        Recognizer.load(copied.path, engine="torhc")


def test_recognition_imports_no_torch(folder: ModelFolder) -> None:
    code = f"""import sys, numpy, headsync
recognizer = headsync.Recognizer.load({str(folder.path)!r})
recognizer.transcribe(numpy.random.default_rng(1).standard_normal(32_000).astype("float32"), 16_000)
sys.exit("torch" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["encode.onnx", "decode.onnx"])
def test_a_missing_or_damaged_graph_is_one_sentence(copied: ModelFolder, name: str) -> None:
    (copied.path / name).write_bytes(b"no graph")
    with pytest.raises(ModelError, match=rf"{name}: damaged .*export the model again"):
        load_engine(copied)
    (copied.path / name).unlink()
    with pytest.raises(ModelError, match=rf"{name} is missing; export the model again: headsync export"):
        load_engine(copied)


def test_graphs_of_another_network_are_refused(copied: ModelFolder) -> None:
    described = json.loads((copied.path / GRAPHS).read_text())
    (copied.path / GRAPHS).write_text(json.dumps({**described, "classes": 99}))
    with pytest.raises(ModelError, match=r"with classes = 99, the rest of the model says 11; .* again"):
        load_engine(copied)
    for damaged, told in (("{", "cannot be read"), ("[]", "does not say"), ('{"int8": false}', "does not say")):
        (copied.path / GRAPHS).write_text(damaged)
        for engine in ("onnx", "torch"):
            with pytest.raises(ModelError, match=rf"graphs\.json: {told}"):
                load_engine(copied, engine=engine)
    (copied.path / GRAPHS).write_text(json.dumps({**described, "weights": {}}))
    with pytest.raises(ModelError, match=r"does not name the weights of embed\.onnx"):
        load_engine(copied)


def test_weights_that_are_missing_are_one_sentence(copied: ModelFolder) -> None:
    copied.weights.write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"weights\.safetensors: damaged"):
        load_engine(copied)
    described = json.loads((copied.path / GRAPHS).read_text())
    shutil.copyfile(copied.path / "statistics.safetensors", copied.weights)
    assert described["weights"]["embed"]
    with pytest.raises(ModelError, match=r"weights\.safetensors: .* is missing"):
        load_engine(copied)


def test_exporting_to_another_folder_takes_everything_along(folder: ModelFolder, tmp_path: Path) -> None:
    agreement = export_model(folder, tmp_path / "out")
    assert agreement.steps == 1.0
    assert agreement.difference < 2e-5
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.name for path in folder.path.iterdir()}
    Recognizer.load(tmp_path / "out")


def test_int8_is_smaller_and_close(folder: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="weights of its own"):
        export_model(folder, folder.path, int8=True)
    export_model(folder, tmp_path, int8=True)
    small = load_folder(tmp_path)
    with pytest.raises(ModelError, match="PyTorch does not run int8"):
        load_engine(small, engine="torch")
    with pytest.raises(ModelError, match="PyTorch does not run int8"):
        export_model(small, tmp_path / "again")
    with pytest.raises(ModelError, match="PyTorch does not run int8"):
        mean_model([folder, small], tmp_path / "mean")
    apart = compare(load_engine(folder), load_engine(small), folder.config, VOCABULARY.size).difference
    assert 1e-4 < apart < 0.5  # eight bits, and in float32 it would be 1e-6
    operations = {node.op_type for node in onnx.load(tmp_path / "decode.onnx", load_external_data=False).graph.node}
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= operations
    assert (tmp_path / WEIGHTS).stat().st_size < folder.weights.stat().st_size


def test_half_precision_halves_the_weights_and_both_engines_read_them_alike(
    folder: ModelFolder, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="half precision has weights of its own"):
        export_model(folder, folder.path, half=True)
    with pytest.raises(ModelError, match="choose one of --int8 and --half"):
        export_model(folder, tmp_path / "both", int8=True, half=True)
    assert not (tmp_path / "both").exists()
    export_model(folder, tmp_path, half=True)
    halved = load_folder(tmp_path)
    assert {each.dtype for each in load_file(halved.weights).values()} == {np.dtype(np.float16)}
    assert {each.dtype for each in load_weights(halved.weights).values()} == {np.dtype(np.float32)}
    among = compare(load_engine(halved), load_engine(halved, engine="torch"), folder.config, VOCABULARY.size)
    assert among.steps == 1.0
    assert among.difference < 2e-5
    apart = compare(load_engine(folder), load_engine(halved), folder.config, VOCABULARY.size).difference
    assert 1e-5 < apart < 0.05  # eleven bits


def test_weights_too_large_for_half_precision_are_told(copied: ModelFolder, tmp_path: Path) -> None:
    weights = load_file(copied.weights)
    weights["ctc.bias"] = weights["ctc.bias"] + 1e6
    copied.weights.write_bytes(save(weights))
    with pytest.raises(ModelError, match=r"ctc\.bias is too large for half precision"):
        export_model(copied, tmp_path / "out", half=True)


def test_no_frames_at_all(folder: ModelFolder) -> None:
    """A step may be asked before there is a frame; it is undecided unless none will come."""
    engine, reference = load_engine(folder), load_engine(folder, engine="torch")
    for final in (False, True):
        nothing = Window(np.array([5]), np.array([0]), np.array([final]))
        one, other = (
            each.decode(np.array([1]), memory(0), each.start_decoder(1), nothing) for each in (engine, reference)
        )
        assert one.ready_B.tolist() == other.ready_B.tolist() == [final]
        assert one.weights_BHT.shape == other.weights_BHT.shape
        np.testing.assert_allclose(one.log_p_BV, other.log_p_BV, atol=1e-5)


def test_states_survive_pickling_and_joining(folder: ModelFolder) -> None:
    """Rows of different streams, after different numbers of tokens, go through the network together."""
    engine, rng = load_engine(folder), np.random.default_rng(1)
    states, alone, tokens = [], [], [rng.integers(1, 9, rows) for rows in (2, 1, 3)]
    for written, token_B in enumerate(tokens, 1):
        state = engine.start_decoder(len(token_B))
        for _ in range(written):
            state = engine.decode(token_B, memory(6), state, window(len(token_B), 6)).state
        states.append(pickle.loads(pickle.dumps(state)))
        alone.append(engine.decode(token_B, memory(6), state, window(len(token_B), 6)).log_p_BV)
    joined = engine.decode(np.concatenate(tokens), memory(6), join_rows(*states), window(6, 6))
    np.testing.assert_allclose(joined.log_p_BV, np.concatenate(alone), atol=1e-5)
    again = engine.decode(tokens[0], memory(6), take_rows(joined.state, [0, 1]), window(2, 6))
    own = engine.decode(tokens[0], memory(6), states[0], window(2, 6)).state
    expected = engine.decode(tokens[0], memory(6), own, window(2, 6))
    np.testing.assert_allclose(again.log_p_BV, expected.log_p_BV, atol=1e-5)


def test_what_no_hypothesis_has_written_is_left_behind() -> None:
    past, rng = Past.start(4, layers=1, width=2), np.random.default_rng(1)
    texts: list[list[float]] = [[] for _ in range(4)]
    for step in range(200):
        own = np.zeros((4, 1, 6), np.float32)
        own[:, 0, 2] = 4 * step + np.arange(4)  # the key's first number says which token it is
        past = past.lean().grown(own)
        texts = [[*text, number] for text, number in zip(texts, own[:, 0, 2].tolist(), strict=True)]
        rows = rng.integers(0, 4, 4).tolist()
        past, texts = take_rows(past, rows), [texts[row] for row in rows]
        assert past.lean().pool.used <= 2 * (len({number for text in texts for number in text}) + 1) + SLACK
        keys = past.pool.layer(0, 0)[:, 0]
        assert [[float(keys[place]) for place in row] for row in past.places_BL] == texts
        seen = past.hidden() == 0
        assert seen.sum(1).tolist() == [len(text) for text in texts]
        assert not seen[:, NOWHERE].any()


def test_the_command_tells_how_far_the_graphs_are_from_pytorch(copied: ModelFolder, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(copied.path), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert re.search(r"out: 0\.\d MB; .* 100\.0% of steps .* by more than \d\.\de-0[67]", done.output)
    wrong = CliRunner().invoke(app, ["export", "digits-ne", str(tmp_path / "out")])
    assert wrong.exit_code == 1
    assert "digits-ne: neither a folder nor a shipped model" in wrong.output
