"""The command line: help, small commands and errors."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.numpy import save_file

import headsync
from commands import environment, one_line, run
from headsync.cli import load_model
from headsync.corpora.manifest import Utterance, write_manifest
from headsync.errors import ModelError
from recordings import DIGIT_RECORDINGS

# help


def test_help_lists_every_command_without_heavy_imports() -> None:
    script = (
        "import sys\nfrom headsync.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'sounddevice', 'jiwer', 'tensorboard'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    for command in ("transcribe", "listen", "demo", "models", "prepare", "train", "evaluate"):
        assert command in done.stdout


def test_python_m_headsync_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headsync", "--help"], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0
    assert "headsync [OPTIONS] COMMAND" in done.stdout


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"headsync {headsync.__version__}\n")


# errors


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (ModelError("m: weights.safetensors is missing;\ncopy the folder again."), 1, "missing; copy the folder"),
        (
            FileNotFoundError(2, "No such file or directory", "recipe.toml"),
            1,
            "directory; check the name.",
        ),
        (PermissionError(13, "Permission denied", "secret"), 1, "secret: Permission denied; check its permissions."),
        (OSError(28, "No space left on device"), 1, "No space left on device; free some space"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 1, "pip install 'headsync[train]'"),
    ],
)
def test_errors_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, wav: Path, error: Exception, exit_code: int, message: str
) -> None:
    def load(*arguments: object, **settings: object) -> None:
        raise error

    monkeypatch.setattr(load_model, "load_recognizer", load)
    result = run("transcribe", wav)
    assert result.exit_code == exit_code
    assert one_line(result.stderr)
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["evaluate", "plot"])
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, command: str) -> None:
    recording = next(DIGIT_RECORDINGS.glob("*.flac"))
    write_manifest(tmp_path / "m.jsonl", [Utterance("a", recording, "one", 1.0)])
    full = tmp_path / "full.png"
    full.symlink_to("/dev/full")
    arguments = {
        "evaluate": ("evaluate", "digits-en", tmp_path / "m.jsonl", "--json", full),
        "plot": ("plot", "attention", "digits-en", recording, "--out", full),
    }
    result = run(*arguments[command])
    assert (result.exit_code, result.stderr) == (
        1,
        f"{full}: No space left on device; free some space and try again.\n",
    )


def test_an_unexported_model_without_pytorch_names_both_remedies(tmp_path: Path, wav: Path) -> None:
    graphs = shutil.ignore_patterns("*.onnx", "graphs.json", "SHA256SUMS")
    folder = shutil.copytree(headsync.shipped_models()["digits-en"], tmp_path / "model", ignore=graphs)
    script = (
        "import sys\nfrom headsync.cli import main\nsys.modules['torch'] = None\n"
        f"sys.argv = ['headsync', 'transcribe', {str(wav)!r}, '--model', {str(folder)!r}]\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
    assert done.returncode == 1
    assert one_line(done.stderr)
    assert f"{folder}: " in done.stderr
    assert "pip install 'headsync[train]'" in done.stderr
    assert f"headsync export {folder} {folder}" in done.stderr


def test_interrupt_exits_as_shells_expect(monkeypatch: pytest.MonkeyPatch, wav: Path) -> None:
    def load(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load_model, "load_recognizer", load)
    result = run("transcribe", wav)
    assert (result.exit_code, result.stderr) == (130, "")


def test_ctrl_c_in_the_middle_of_a_recording(wav: Path) -> None:
    soundfile.write(wav, np.zeros(60 * 8000, dtype=np.float32), 8000)  # a minute: it does not end before Ctrl-C
    script = (
        "import signal, sys\nfrom fakes import FakeRecognizer\nfrom headsync.cli import load_model, main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which shells take from what they run behind
        "load_model.load_recognizer = lambda *a, **k: print('loaded', flush=True) or FakeRecognizer('one')\n"
        f"sys.argv = ['headsync', 'transcribe', '--realtime', {str(wav)!r}]\nmain()"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, env=environment(), **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == "loaded\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=10) == ("", "")
    assert child.returncode == 130


def test_internal_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, wav: Path) -> None:
    def load(*arguments: object, **settings: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(load_model, "load_recognizer", load)
    assert isinstance(run("transcribe", wav).exception, ZeroDivisionError)


def test_a_closed_pipe_is_not_an_error(wav: Path) -> None:
    script = (
        "import sys\nfrom fakes import FakeRecognizer\nfrom headsync.cli import load_model, main\n"
        "load_model.load_recognizer = lambda *a, **k: FakeRecognizer('one', 'two')\n"
        f"sys.argv = ['headsync', 'transcribe', {str(wav)!r}, {str(wav)!r}]\nmain()"
    )
    command = f'{sys.executable} -c "$SCRIPT" | true'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**environment(), "SCRIPT": script})
    assert done.stderr == ""


# models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "digits-xx"
    folder.mkdir()
    save_file({"a": np.zeros((1000, 12), np.float32), "b": np.zeros(34, np.float32)}, folder / "weights.safetensors")
    (folder / "README.md").write_text(
        "---\nlicense: mit\n---\n# digits-xx\n\nEnglish digits, streaming. More.\n\nEnd.\n"
    )
    return folder


def test_models_lists_name_purpose_parameters_and_size(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr(load_model, "known_models", lambda: {"digits-xx": model})
    result = run("models")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].split() == [
        "digits-xx",
        "English",
        "digits,",
        "streaming",
        "0.01",
        "M",
        "0.0",
        "MB",
    ]


def test_models_reports_damaged_weights(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    (model / "weights.safetensors").write_bytes(b"broken")
    monkeypatch.setattr(load_model, "known_models", lambda: {"digits-xx": model})
    result = run("models")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "weights.safetensors" in result.stderr


# prepare and train


def test_prepare_toy_writes_manifests(tmp_path: Path) -> None:
    result = run("prepare", "toy", tmp_path / "toy")
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in (tmp_path / "toy").glob("*.jsonl")} >= {"train.jsonl", "dev.jsonl", "test.jsonl"}


def test_prepare_reports_a_wrong_folder_in_one_sentence(tmp_path: Path) -> None:
    result = run("prepare", "librispeech", tmp_path, tmp_path / "out")
    assert result.exit_code == 1
    assert one_line(result.stderr)


def test_train_passes_recipe_and_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []
    monkeypatch.setattr("headsync.training.train", lambda recipe, overrides: asked.extend([recipe, overrides]))
    (tmp_path / "r.toml").touch()
    assert run("train", tmp_path / "r.toml", "training.seed=3", "training.epochs=2").exit_code == 0
    assert asked == [tmp_path / "r.toml", ["training.seed=3", "training.epochs=2"]]
