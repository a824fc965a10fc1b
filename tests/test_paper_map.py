"""The map from the paper to the code is complete, and every name in it exists."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "explanation" / "paper-map.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!paper|question)([^|-][^|]*?) \|(.*)\|$", MAP, re.MULTILINE)
CODE = sorted(set(re.findall(r"`(headsync\.[\w.]+)`", MAP)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/.]+(?:::\w+)?)`", MAP)))
EQUATIONS = [f"eq. ({number})" for number in range(1, 11)]


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def resolve(name: str) -> object:
    """A module, or something in one, by its dotted name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"there is no {name}")


@pytest.mark.parametrize("item", [*EQUATIONS, "Algorithm 1"])
def test_every_equation_is_mapped_to_a_function_and_a_test(item: str) -> None:
    rows = [rest for first, rest in ROWS if first == item]
    assert rows, f"{item} is not in the map"
    assert all("`headsync." in rest and "`tests/" in rest for rest in rows)


def test_there_are_no_other_equations() -> None:
    assert {first for first, _ in ROWS if first.startswith("eq. (") and len(first) < 10} == set(EQUATIONS)


@pytest.mark.parametrize("name", CODE)
def test_code_exists(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize("name", TESTS)
def test_tests_exist(name: str) -> None:
    path, _, function = name.partition("::")
    assert (ROOT / path).is_file()
    assert not function or function in functions(ROOT / path)


@pytest.mark.parametrize("item", EQUATIONS)
def test_the_code_cites_the_equation(item: str) -> None:
    """Equations are cited where they are computed."""
    number = item.removeprefix("eq. (").removesuffix(")")
    cited = re.compile(r"eq\. \(\d+\)(?:, \(\d+\))*(?: (?:and|to) \(\d+\))?")
    found = set()
    for path in (ROOT / "src" / "headsync").rglob("*.py"):
        for citation in cited.findall(path.read_text(encoding="utf-8")):
            numbers = [int(n) for n in re.findall(r"\d+", citation)]
            found |= set(range(min(numbers), max(numbers) + 1)) if " to " in citation else set(numbers)
    assert int(number) in found
