"""The ONNX engine: loading, states, and independence of PyTorch."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
from headsync.engine import NO_LIMIT, Engine, Memory, State, Window, load_engine
from headsync.engine.export import export_model
from headsync.engine.kv_pool import EMPTY, SPARE_SLOTS, Past
from headsync.engine.onnx import OnnxEngine
from headsync.engine.state_tree import join_rows, take_rows
from headsync.engine.torch import TorchEngine
from headsync.engine.verify import compare
from headsync.errors import TrainingError
from headsync.model_folder import CHECKSUMS, GRAPHS, WEIGHTS, ModelFolder, load_folder, load_weights


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
    with pytest.raises(ModelError, match=r"no graphs; write them: headsync export .*"):
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
    with pytest.raises(ModelError, match=r"the graphs have classes = 99, the rest of the model has 11; .* again"):
        load_engine(copied)
    (copied.path / GRAPHS).write_text(json.dumps({**described, "decoder.normalised": True}))
    with pytest.raises(ModelError, match=r"the graphs have decoder.normalised = True, the rest of the model has False"):
        load_engine(copied)
    (copied.path / GRAPHS).write_text(json.dumps({**described, "format": 1}))
    with pytest.raises(ModelError, match=r"by another version of headsync; export the model again: headsync export"):
        load_engine(copied)
    for damaged, problem in (
        ("{", "cannot be read"),
        ("[]", "does not describe"),
        ('{"int8": false}', "does not describe"),
    ):
        (copied.path / GRAPHS).write_text(damaged)
        for engine in ("onnx", "torch"):
            with pytest.raises(ModelError, match=rf"graphs\.json: {problem}"):
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


def test_exporting_to_another_folder_copies_all_files(folder: ModelFolder, tmp_path: Path) -> None:
    agreement = export_model(folder, tmp_path / "out")
    assert agreement.steps == 1.0
    assert agreement.difference < 2e-5
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.name for path in folder.path.iterdir()} | {CHECKSUMS}
    Recognizer.load(tmp_path / "out")


def test_an_error_in_writing_names_the_file_that_was_written(
    folder: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"file/out: cannot be created \(Not a directory\)"):
        export_model(folder, tmp_path / "file" / "out")

    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.weights))

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(TrainingError, match=r"^\S*/out/weights\.safetensors: cannot be written \(No space left"):
        export_model(folder, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_int8_is_smaller_and_close(folder: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="requires separate weights"):
        export_model(folder, folder.path, int8=True)
    export_model(folder, tmp_path, int8=True)
    small = load_folder(tmp_path)
    with pytest.raises(ModelError, match="PyTorch does not run int8"):
        load_engine(small, engine="torch")
    with pytest.raises(ModelError, match="PyTorch does not run int8"):
        export_model(small, tmp_path / "again")
    apart = compare(load_engine(folder), load_engine(small), folder.config, VOCABULARY.size).difference
    assert 1e-4 < apart < 0.5  # eight bits, and in float32 it would be 1e-6
    operations = {node.op_type for node in onnx.load(tmp_path / "encode.onnx", load_external_data=False).graph.node}
    assert "MatMulInteger" in operations
    assert (tmp_path / WEIGHTS).stat().st_size < folder.weights.stat().st_size


def test_half_precision_halves_the_weights_and_both_engines_read_them_alike(
    folder: ModelFolder, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="half precision requires separate weights"):
        export_model(folder, folder.path, half=True)
    with pytest.raises(ModelError, match="choose one of int8 and half"):
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


@pytest.mark.parametrize("precision", ["float32", "half", "int8"])
def test_a_row_of_a_batch_equals_the_row_alone(folder: ModelFolder, tmp_path: Path, precision: str) -> None:
    """Encoder: bit for bit. Decoder: up to the rounding of float32, since memories are padded and pools joined."""
    if precision != "float32":
        export_model(folder, tmp_path, int8=precision == "int8", half=precision == "half")
        folder = load_folder(tmp_path)
    engine, rng = load_engine(folder), np.random.default_rng(1)
    loudness = np.array([0.1, 1.0, 3.0, 0.5, 20.0])[:, None, None]
    features = (loudness * rng.standard_normal((5, 23, 80))).astype(np.float32)
    together, parts = engine.embed(features, engine.start_front(5))[0], []
    for row in range(5):
        parts.append(engine.embed(features[row : row + 1], engine.start_front(1))[0])
        np.testing.assert_array_equal(parts[row], together[row : row + 1])
    states, state = [engine.start_encoder(1) for _ in parts], engine.start_encoder(5)
    for _ in range(3):
        encoded = engine.encode(together, np.full(5, 5), state, 3)
        for row, part in enumerate(parts):
            alone = engine.encode(part, np.array([5]), states[row], 3)
            np.testing.assert_array_equal(alone.log_ctc_BTV, encoded.log_ctc_BTV[row : row + 1])
            np.testing.assert_array_equal(alone.memory.keys_BNHTD, encoded.memory.keys_BNHTD[row : row + 1])
            states[row] = alone.state
        state = encoded.state
    states = [engine.start_decoder(3) for _ in range(4)]
    before = [engine.decode(np.full(3, n + 1), memory(6), states[n], window(3, 6)).state for n in range(4)]
    joined = engine.decode(np.arange(12) % 5, memory(6), join_rows(*before), window(12, 6))
    for n in range(4):
        alone = engine.decode(np.arange(3 * n, 3 * n + 3) % 5, memory(6), before[n], window(3, 6))
        np.testing.assert_allclose(alone.log_p_BV, joined.log_p_BV[3 * n : 3 * n + 3], atol=2e-5)


def test_weights_too_large_for_half_precision_are_an_error(copied: ModelFolder, tmp_path: Path) -> None:
    weights = load_file(copied.weights)
    weights["ctc.bias"] = weights["ctc.bias"] + 1e6
    copied.weights.write_bytes(save(weights))
    with pytest.raises(ModelError, match=r"ctc\.bias is too large for half precision"):
        export_model(copied, tmp_path / "out", half=True)


def test_no_frames_at_all(folder: ModelFolder) -> None:
    """A step may be called before the first frame; it is undecided unless the stream has ended."""
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


def test_slots_that_no_hypothesis_names_are_dropped() -> None:
    past, rng = Past.start(4, layers=1, width=2), np.random.default_rng(1)
    texts: list[list[float]] = [[] for _ in range(4)]
    for step in range(200):
        own = np.zeros((4, 1, 6), np.float32)
        own[:, 0, 2] = 4 * step + np.arange(4) + 1  # the key's first number identifies the token
        past = past.compacted().appended(own)
        texts = [[*text, number] for text, number in zip(texts, own[:, 0, 2].tolist(), strict=True)]
        rows = rng.integers(0, 4, 4).tolist()
        past, texts = take_rows(past, rows), [texts[row] for row in rows]
        distinct = {number for text in texts for number in text}
        assert past.compacted().pool.used <= 2 * (len(distinct) + 1) + SPARE_SLOTS
        both, hidden_BP = past.visible()
        keys = both[0, 0, :, 0]
        assert keys.tolist() == [0.0, *sorted(distinct)]
        assert [keys[row == 0].tolist() for row in hidden_BP] == texts
        assert not (hidden_BP[:, EMPTY] == 0).any()


def continued(engine: Engine, state: State, tokens: list[int]) -> list[np.ndarray]:
    """Scores of some steps, each on the state of the step before, with hypotheses reordered."""
    scores, rows = [], [1, 0, 1]
    for token in tokens:
        decoded = engine.decode(np.full(3, token), memory(6), state, window(3, 6))
        scores.append(decoded.log_p_BV)
        state = take_rows(decoded.state, rows)
    return scores


def test_decoding_is_a_function_of_its_arguments(folder: ModelFolder) -> None:
    """Repeating a step, or continuing another way, does not change later results."""
    engine, tokens = load_engine(folder), [3, 1, 4, 1, 5, 2, 6, 5, 3]
    expected = continued(engine, engine.start_decoder(3), tokens)
    for others in ([], [7], [2, 7, 1, 8, 2]):
        state = engine.start_decoder(3)
        for number, token in enumerate(tokens):
            continued(engine, state, others)
            decoded = engine.decode(np.full(3, token), memory(6), state, window(3, 6))
            np.testing.assert_array_equal(decoded.log_p_BV, expected[number])
            continued(engine, decoded.state, others)
            state = take_rows(decoded.state, [1, 0, 1])


def test_decoding_does_not_depend_on_other_threads(folder: ModelFolder) -> None:
    """Streams that share a pool after a batch may continue at the same time."""
    engine, tokens = load_engine(folder), [3, 1, 4, 1, 5, 2, 6, 5, 3]
    shared = join_rows(*(engine.start_decoder(3) for _ in range(4)))
    expected = continued(engine, engine.start_decoder(3), tokens)
    with ThreadPoolExecutor(4) as pool:
        own = [take_rows(shared, range(3 * n, 3 * n + 3)) for n in range(4)]
        for scores in pool.map(lambda state: continued(engine, state, tokens), own):
            np.testing.assert_array_equal(scores, expected)


def test_the_command_prints_the_difference_from_pytorch(copied: ModelFolder, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(copied.path), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert re.search(r"out: 0\.\d MB; .* 100\.0% of steps .* by at most \d\.\de-0[67]", done.output)
    wrong = CliRunner().invoke(app, ["export", "digits-ne", str(tmp_path / "out")])
    assert wrong.exit_code == 1
    assert "digits-ne: neither a folder nor the name of a model" in wrong.output
