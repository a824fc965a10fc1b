"""Import rules: which package may import which, where PyTorch may be imported, and what is public."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headsync

PACKAGE = Path(headsync.__file__).parent
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "explanation" / "architecture.md"
TORCH = ("headsync.engine", "headsync.nn", "headsync.attention", "headsync.training", "headsync.testing")
BASE = {"_arguments", "_atomic_write", "_parse", "config", "errors", "events"}  # every package may import these


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """Everything that a file imports, inside functions as well; for `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports must be absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


IMPORTS = {name: set(imported(path)) for name, path in MODULES.items()}


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def package_of(name: str) -> str:
    """The package or top-level module below headsync."""
    return name.split(".")[1] if "." in name else ""


def rules() -> dict[str, set[str]]:
    """The table of the architecture page: each package and the packages it may import."""
    page = ARCHITECTURE.read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Import rules\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section, re.MULTILINE)
    return {package: set(re.findall(r"`(\w+)`", allowed)) for package, allowed in rows}


RULES = rules()


def reached(package: str) -> set[str]:
    """All packages that a package imports by these rules, directly or through others."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        for other in RULES.get(waiting.pop(), set()) - found:
            found.add(other)
            waiting.append(other)
    return found


def test_the_parser_sees_imports_within_functions() -> None:
    assert "torch" in IMPORTS["headsync.nn.decoder"]
    assert "headsync.engine.torch" in IMPORTS["headsync.engine"]
    assert len(MODULES) > 40


def test_every_package_has_a_rule() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= RULES.keys()


@pytest.mark.parametrize("name", [name for name in MODULES if package_of(name) in RULES])
def test_imports_follow_the_rules(name: str) -> None:
    others = {package_of(other) for other in IMPORTS[name] if other in MODULES} - {package_of(name), ""}
    assert others <= RULES[package_of(name)] | BASE


@pytest.mark.parametrize(("package", "forbidden"), [
    ("frontend", {"engine", "nn", "attention", "decoding", "endpointing", "lm", "text"}),
    ("text", {"engine", "nn", "attention", "decoding", "endpointing", "lm", "frontend"}),
    ("attention", {"engine", "nn", "decoding", "frontend", "text", "training"}),
    ("nn", {"engine", "decoding", "text", "training"}),
    ("engine", {"decoding", "endpointing", "lm", "recognizer", "training"}),
    ("decoding", {"recognizer", "evaluation", "training", "corpora", "server", "cli"}),
    ("recognizer", {"evaluation", "training", "corpora", "experiments", "server", "cli", "testing"}),
    ("training", {"recognizer", "decoding", "evaluation", "server", "cli"}),
    ("server", {"evaluation", "training", "corpora", "experiments", "cli"}),
])  # fmt: skip
def test_the_rules_keep_stages_apart(package: str, forbidden: set[str]) -> None:
    assert not reached(package) & forbidden


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, *TORCH)])
def test_only_some_packages_import_torch(name: str) -> None:
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
    code = "import sys, headsync, headsync.decoding.beam, headsync.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
