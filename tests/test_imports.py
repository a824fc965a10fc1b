"""Who may import whom: the stages stay apart, and recognition needs no training framework."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headsync

PACKAGE = Path(headsync.__file__).parent
TORCH = ("headsync.engine", "headsync.nn", "headsync.attention", "headsync.train", "headsync.testing")


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """All that a file imports, also within functions; of `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


IMPORTS = {name: set(imported(path)) for name, path in MODULES.items()}


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def reached(*first: str) -> set[str]:
    """All modules of the package that these ones import, directly or through others."""
    found, waiting = set(), [name for name in MODULES if within(name, *first)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [other for other in IMPORTS[name] if other in MODULES]
    return found


def test_the_walk_sees_the_package() -> None:
    assert "torch" in IMPORTS["headsync.nn.decoder"]
    assert "headsync.nn.model" in reached("headsync.recognizer")  # by an import within a function
    assert len(MODULES) > 40


@pytest.mark.parametrize(("stage", "forbidden"), [
    (("headsync.attention", "headsync.nn"), ("headsync.search", "headsync.recognizer", "headsync.train")),
    (("headsync.search",), ("headsync.server", "headsync.train", "headsync.recognizer", "headsync.cli")),
    (("headsync.recognizer",), ("headsync.train", "headsync.server", "headsync.cli", "headsync.testing")),
    (("headsync.engine",), ("headsync.search", "headsync.train", "headsync.recognizer")),
    (("headsync.audio", "headsync.features", "headsync.tokens"), ("headsync.engine", "headsync.nn", "headsync.search")),
], ids=lambda names: names[0].removeprefix("headsync."))  # fmt: skip
def test_stages_stay_apart(stage: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    assert [name for name in sorted(reached(*stage)) if within(name, *forbidden)] == []


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, *TORCH)])
def test_torch_stays_in_its_place(name: str) -> None:
    assert not [other for other in IMPORTS[name] if within(other, "torch", "torchaudio", "safetensors.torch")]


def test_the_package_never_imports_its_tests() -> None:
    tests = {path.stem for path in Path(__file__).parent.iterdir() if path.suffix in ("", ".py")} | {"tests"}
    assert "reference" in tests
    for name, others in IMPORTS.items():
        assert not {other.split(".")[0] for other in others} & tests, name


def test_the_public_names_are_sorted_and_exist() -> None:
    assert list(headsync.__all__) == sorted(headsync.__all__)
    assert all(hasattr(headsync, name) for name in headsync.__all__)


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, headsync, headsync.search.beam, headsync.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
