"""Mechanisms of other packages: the package of the how-to page is installed, trained and used for recognition."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headsync
from headsync.attention import mechanism_of
from headsync.attention.softmax import Softmax
from headsync.config import DecoderConfig
from headsync.decoding.lookahead import limit_of, lookahead
from headsync.errors import ConfigError

ROOT = Path(__file__).parents[2]
HOW_TO = (ROOT / "docs" / "how-to" / "add-a-mechanism.md").read_text(encoding="utf-8")
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "late-softmax"
version = "1.0"

[tool.setuptools]
py-modules = ["late_softmax"]
"""
WRONG = """softmax = "late_softmax:LateSoftmax"
gone = "late_softmax:Gone"
function = "late_softmax:energies"
"""


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", HOW_TO, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package of the how-to page is installed, and a broken one."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    (entry_points,) = fences("toml")
    entry_points = entry_points.replace('LateSoftmax"\n', 'LateSoftmax"\n' + WRONG)
    (source / "pyproject.toml").write_text(PROJECT + entry_points, encoding="utf-8")
    (source / "late_softmax.py").write_text(fences("python")[0], encoding="utf-8")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*words, "--target", str(target), str(source)], check=True, capture_output=True)
    return target


@pytest.fixture
def on_the_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(installed)
    return installed


def test_a_mechanism_of_another_package(on_the_path: Path) -> None:
    mechanism = mechanism_of(DecoderConfig(attention="late-softmax"))
    assert (mechanism.__module__, mechanism.__name__) == ("late_softmax", "LateSoftmax")
    assert limit_of("late-softmax") is lookahead
    assert mechanism_of(DecoderConfig(attention="softmax")) is Softmax  # the table has precedence
    assert on_the_path


@pytest.mark.usefixtures("on_the_path")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", r'"gone": late_softmax:Gone of late-softmax cannot be imported'),
        ("function", "late_softmax:energies of late-softmax is not a subclass"),
        ("late-softmin", r'did you mean "late-softmax"'),
    ],
)
def test_wrong_entry_points_are_one_sentence(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mechanism_of(DecoderConfig(attention=name))


def test_a_mechanism_that_is_not_installed() -> None:
    with pytest.raises(ConfigError, match='"late-softmax" is not known'):
        mechanism_of(DecoderConfig(attention="late-softmax"))
    with pytest.raises(ConfigError, match='"late-softmax" is not known'):
        limit_of("late-softmax")


def test_training_and_recognition_with_it(installed: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(installed), str(Path(headsync.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "headsync", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("prepare", "toy", "runs/data/toy")
    for manifest in tmp_path.glob("runs/data/toy/*.jsonl"):
        lines = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
        manifest.write_text("".join(lines[:12]), encoding="utf-8")
    settings = ["decoder.attention=late-softmax", "training.epochs=1", "training.untruncated_updates=1"]
    run("train", str(ROOT / "recipes" / "toy" / "toy.toml"), *settings)
    assert 'attention = "late-softmax"' in (tmp_path / "runs/toy/model/config.toml").read_text(encoding="utf-8")
    run("export", "runs/toy/model", "runs/toy/exported")
    audio = str(next((tmp_path / "runs/data/toy").rglob("test-*.flac")))
    found = [
        json.loads(run("transcribe", "--format", "json", "--model", f"runs/toy/{name}", "--engine", engine, audio))
        for name, engine in (("model", "torch"), ("exported", "onnx"))
    ]
    assert found[0]["utterances"][0]["text"] == found[1]["utterances"][0]["text"]
