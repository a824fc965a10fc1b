"""Untrusted models: loading one executes nothing, and reads nothing outside of its folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import headsync
from headsync import ModelError, Recognizer

SHIPPED = Path(headsync.__file__).parent / "models" / "digits-en"

WATCHED = """
import pickle, sys
from headsync import Recognizer

Recognizer.load(sys.argv[1])  # imports what it needs
seen = []
WATCHED = ("pickle.find_class", "exec", "compile", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")

def watch(event, arguments):
    if event in WATCHED and sys._getframe(1).f_globals["__name__"] != "typing":  # annotations of our own classes
        seen.append((event, arguments))

sys.addaudithook(watch)
Recognizer.load(sys.argv[1])
assert not seen, seen
pickle.loads(pickle.dumps(pickle.PickleError))
assert [event for event, _ in seen] == ["pickle.find_class"], seen
"""


def test_loading_a_model_executes_nothing() -> None:
    subprocess.run([sys.executable, "-c", WATCHED, str(SHIPPED)], check=True, timeout=120)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    (folder / "SHA256SUMS").unlink()  # the author of a model also writes its checksums
    return folder


@pytest.mark.parametrize("outside", ["../outside.bin", "absolute", "link.bin"])
def test_a_graph_cannot_read_a_file_outside_of_its_folder(copied: Path, outside: str) -> None:
    secret = copied.parent / "outside.bin"
    secret.write_bytes(bytes(16))
    if outside == "link.bin":
        (copied / outside).symlink_to(secret)
    path = copied / "embed.onnx"
    graph = onnx.load(str(path), load_external_data=False)
    tensor = onnx.TensorProto(name="read", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": str(secret) if outside == "absolute" else outside, "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    graph.graph.initializer.append(tensor)
    graph.graph.node.append(onnx.helper.make_node("Identity", ["read"], ["told"]))
    graph.graph.output.append(onnx.helper.make_tensor_value_info("told", onnx.TensorProto.FLOAT, [4]))
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(ModelError, match="External data path"):
        Recognizer.load(copied)
