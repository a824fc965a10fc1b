"""The release: contents and size of wheel and sdist, an installation without PyTorch, and files about the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
import yaml

import headsync
from headsync.model_folder import shipped

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAX_WHEEL_BYTES = 80_000_000  # the package index accepts 100 MB
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a distribution with the installed setuptools."""
    words = [sys.executable, "-W", "ignore", "-c", BUILD, f"build_{kind}", str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that a release is built from, so that no other file of the checkout can enter it."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (copy / "tests").mkdir()
    (copy / "tests" / "test_something.py").write_text("")
    for name in (
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "CITATION.cff",
        "constraints.txt",
    ):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


def package_files() -> set[str]:
    paths = [
        path for path in (ROOT / "src" / "headsync").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return {path.relative_to(ROOT / "src").as_posix() for path in paths}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == package_files()
    for model in shipped():
        assert f"headsync/models/{model}/weights.safetensors" in names
    assert {"headsync/py.typed", "headsync/server/page/index.html", "headsync/demo/1-slt.flac"} <= names
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
        licences = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
    assert (metadata["Name"], metadata["Version"]) == ("headsync", headsync.__version__)
    assert (metadata["License-Expression"], len(licences)) == ("MIT", 1)
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert any(line.startswith("onnxruntime") for line in required)
    assert not any(line.startswith(("torch", "fastapi")) for line in required)


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert (folder / "CHANGELOG.md").is_file()
    assert not (folder / "tests").exists()
    again = build("wheel", folder, tmp_path)
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {info.filename: info.CRC for info in first.infolist() if "RECORD" not in info.filename} == {
            info.filename: info.CRC for info in second.infolist() if "RECORD" not in info.filename
        }


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(str(binaries / "pip"), "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    installed = run(str(binaries / "pip"), "list", "--format", "freeze").lower().splitlines()
    assert not [line for line in installed if line.startswith(("torch", "fastapi", "uvicorn"))]
    assert run(str(binaries / "headsync"), "--version") == f"headsync {headsync.__version__}\n"
    assert "recordings as expected" in run(str(binaries / "headsync"), "demo", "--fast")


def test_the_version_is_in_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert "version" not in PROJECT["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["cff-version"], citation["license"]) == (headsync.__version__, "1.2.0", "MIT")
    assert headsync.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_requirement_of_an_extra_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normalised(line.partition("==")[0]) for line in lines}
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["wyoming"], *extras["serve"]]
    names = {normalised(re.match(r"[\w.-]+", requirement)[0]) for requirement in asked}  # type: ignore[index]
    assert names - {"headsync"} <= pinned


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# continuous integration


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert workflow[True].keys() == {"push", "pull_request"}  # YAML reads the key "on" as true
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    matrix = job["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert job["steps"][-1]["run"] == ".ci/run"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_oldest_python_of_the_workflow_is_the_one_required() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11"


def test_completion_of_commands(tmp_path: Path) -> None:
    environment = {**os.environ, "_HEADSYNC_COMPLETE": "complete_bash", "COMP_WORDS": "headsync tra", "COMP_CWORD": "1"}
    code = "from headsync.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["transcribe", "train"]
