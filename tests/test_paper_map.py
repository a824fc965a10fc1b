"""The map from the paper to the code has a row for every specification, and every name in it exists."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "explanation" / "paper-map.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!paper)([^|-][^|]*?) \| ([^|]*?) \| ([^|]*?) \| ([^|]*?) \| ([^|]*?) \|$", MAP, re.MULTILINE)
CODE = sorted(set(re.findall(r"`(headsync\.[\w.]+)`", MAP)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/.]+(?:::\w+)?)`", MAP)))
EQUATIONS = [f"eq. ({number})" for number in range(1, 11)]
ALGORITHM = [f"Algorithm 1, line {number}" for number in range(1, 16)]
NETWORK = [
    "features: filter bank", "features: normalisation", "features: pitch", "front end", "encoder: layers",
    "encoder: chunks", "encoder: one chunk after the other", "encoder: positions", "decoder: positions",
    "decoder: layers", "sizes", "layers", "initial values", "one head", "Figure 1", "offline Transformer",
]  # fmt: skip
TRAINING = [
    "corpora", "classes", "word pieces", "joint loss", "loss normalisation", "look-ahead in training",
    "truncation in training", "epochs", "patience", "schedule", "optimiser", "gradient clipping", "label smoothing",
    "attention dropout", "other dropout", "batches", "averaging", "augmentation: speed", "augmentation: SpecAugment",
    "gradient through the halt",
]  # fmt: skip
DECODING = [
    "utterances", "CTC in decoding", "beams", "pre-beam", "length of texts", "language models", "language model: use",
    "look-ahead", "thresholds", "thresholds of Table 4", "synchronisation", "steps ended by M", "error rates",
    "r over a test set",
]  # fmt: skip
SYSTEMS = [
    "HMA", "MoChA", "MTA", "MMA-MoChA", "ACS", "CIF", "triggered attention: mechanism", "triggered attention: training",
    "triggered attention: search", "BS-DEC: encoder", "BS-DEC: search",
]  # fmt: skip
SPECIFICATIONS = [*EQUATIONS, *ALGORITHM, *NETWORK, *TRAINING, *DECODING, *SYSTEMS]


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def resolve(name: str) -> object:
    """A module, or an object in one, by its dotted name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} does not exist")


def test_every_specification_has_one_row() -> None:
    assert sorted(first for first, *_ in ROWS) == sorted(SPECIFICATIONS)


@pytest.mark.parametrize(("first", "_", "status", "code", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_has_a_status_a_function_and_a_test(first: str, _: str, status: str, code: str, tests: str) -> None:
    assert "`headsync." in code
    assert "`tests/" in tests
    assert status.startswith(("exact", "deviates")) or first == "gradient through the halt"


@pytest.mark.parametrize("row", [row for row in ROWS if row[2].startswith("deviates")], ids=lambda row: row[0])
def test_a_deviation_has_a_setting_or_says_that_there_is_none(row: tuple[str, ...]) -> None:
    assert re.search(r"`[a-z]+\.[a-z_]+|no setting", row[2])


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
