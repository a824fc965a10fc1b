"""Mutation testing of whole modules: the mutants are faulty versions of the module, one change each."""

from __future__ import annotations

import ast
import difflib

import pytest

from module_mutants import PACKAGE, apply, own_tests, sampled


@pytest.mark.parametrize("file", ["attention/softmax.py", "engine/frame_buffer.py"])
def test_each_mutant_compiles_and_changes_one_statement(file: str) -> None:
    original = ast.unparse(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))).splitlines()
    texts = [apply(mutant) for mutant in sampled(file, None)]
    assert len(texts) >= 10
    assert len(set(texts)) == len(texts)
    for text in texts:
        compile(text, file, "exec")
        changed = [line for line in difflib.ndiff(original, text.splitlines()) if line.startswith(("- ", "+ "))]
        assert len(changed) == 2, changed


def test_a_sample_is_always_the_same() -> None:
    assert sampled("attention/bernoulli.py", 5) == sampled("attention/bernoulli.py", 5)
    assert len(sampled("attention/bernoulli.py", 5)) == 5


def test_a_module_is_tested_by_its_own_tests_first() -> None:
    assert own_tests("attention/cif.py") == ["tests/attention/test_cif.py", "tests/attention"]
