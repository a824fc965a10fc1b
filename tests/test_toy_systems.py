"""The script that trains every system on the toy corpus: which ones, what it repeats, and that all of them learn."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conftest import ROOT
from headsync.attention import MECHANISMS
from headsync.corpora import toy
from headsync.recipe import load_config

SCRIPT = ROOT / "recipes" / "toy" / "systems.py"
RESULT: dict[str, Any] = {
    "encoder": "reuse", "error_rate": 0.0125, "decoder_alone": 0.25, "counts": {"errors": 2, "words": 160},
    "cost_ratio": 0.5, "delays": {"user_perceived": {"p50": 0.25, "p95": 0.5}}, "updates": 800,
    "training_seconds": 61.0,
}  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("toy_systems", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # recipes hold recipes alone
    spec.loader.exec_module(module)
    return module


def test_every_mechanism_is_a_system_and_so_is_the_offline_transformer(script: ModuleType) -> None:
    configs = {system.name: load_config(script.RECIPE, system.overrides) for system in script.systems()}
    assert set(configs) == {"softmax-full", *MECHANISMS}
    for name, config in configs.items():
        assert config.decoder.attention == name.removesuffix("-full")
        expected = {"softmax-full": "full", "bs-dec": "contextual"}
        assert config.encoder.mode == expected.get(name, "reuse")


def test_finished_systems_are_not_repeated_without_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def trained(system: Any, run: Path, corpus: Path) -> dict[str, Any]:
        run.mkdir()
        done.append("trained")
        return {"training_seconds": 61.0, "updates": 800}

    def measured(model: Path, corpus: Path) -> dict[str, Any]:
        done.append("measured")
        return {name: value for name, value in RESULT.items() if name not in ("training_seconds", "updates")}

    monkeypatch.setattr(script, "trained", trained)
    monkeypatch.setattr(script, "measured", measured)
    system = script.systems()[0]
    results = [script.result_of(system, tmp_path, tmp_path, again) for again in (False, False, True)]
    assert results == [RESULT] * 3
    assert done == ["trained", "measured", "measured"]
    assert json.loads((tmp_path / system.name / "result.json").read_text()) == RESULT


def test_the_table_is_markdown(script: ModuleType) -> None:
    head, line, row = script.table({"mta": RESULT}).splitlines()
    assert head.count("|") == line.count("|") == row.count("|")
    assert row == "| mta | reuse | 1.2% | 2 of 160 | 25.0% | 0.50 | 0.25 / 0.50 s | 800 | 61 s |"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    toy.prepare(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax-full", *MECHANISMS])
def test_every_system_learns_to_stream(name: str, script: ModuleType, corpus: Path, tmp_path: Path) -> None:
    (system,) = (system for system in script.systems() if system.name == name)
    result = script.result_of(system, tmp_path, corpus)
    assert result["counts"]["words"] > 100
    assert result["decoder_alone"] < 0.6  # CTC would hide a decoder that ignores the audio
    assert result["error_rate"] < 0.05, [one for one in result["outcomes"] if one["reference"] != one["hypothesis"]]
