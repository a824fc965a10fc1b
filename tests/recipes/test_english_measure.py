"""The table of figures of the English recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measure
import pytest

FIGURES: dict[str, Any] = {
    "utterances": 2,
    "error_rate": 0.125,
    "interval": [0.1, 0.15],
    "interval_by_speaker": None,
    "invented_per_minute": 0.5,
    "counts": {"substitutions": 3, "deletions": 2, "insertions": 1},
    "delays": {"user_perceived": {"p50": 0.9, "p90": 1.4}},
    "word_times": "reference",
    "cost_ratio": 0.5,
    "real_time_factor": 0.1,
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run; each writes FIGURES."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        commands.append(command)
        Path(command[command.index("--json") + 1]).write_text(json.dumps(FIGURES))

    monkeypatch.setattr(measure.subprocess, "run", run)
    return commands


def test_a_set_is_measured_once_for_the_same_model_files(runs: list[list[str]], tmp_path: Path) -> None:
    for digest, commands in (("a", 1), ("a", 1), ("b", 2)):
        assert measure.measure("english", "dev-clean-300", tmp_path / "new", digest)["error_rate"] == 0.125
        assert len(runs) == commands
    assert runs[0][1:5] == ["-m", "headsync", "evaluate", "english"]
    assert runs[0][runs[0].index("--align") :][:2] == ["--align", "pocketsphinx"]


def test_a_row_has_the_error_rate_or_the_invented_words(runs: list[list[str]]) -> None:
    assert measure.cells("dev-clean-300", FIGURES)[2:] == [
        "12.5 % (10.0 to 15.0)",
        "3 / 2 / 1",
        "0.90 / 1.40 s",
        "0.50",
        "0.10",
    ]
    silent = FIGURES | {"error_rate": None, "cost_ratio": None, "word_times": "recogniser"}
    assert measure.cells("background", silent)[2:] == ["0.50 words per minute", "3 / 2 / 1", "", "", "0.10"]
