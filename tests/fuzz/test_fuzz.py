"""Every harness over its inputs and some hundred mutations of them, the same ones in every run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.all import HARNESSES, inputs
from fuzz.mutate import mutations

RUN = Path(__file__).parent / "run.py"
MUTATIONS = 100


@pytest.mark.parametrize("name", [name for name, harness in HARNESSES.items() if not harness.native])
def test_parsers(name: str) -> None:
    harness, kept = HARNESSES[name], inputs(name)
    for data in [b"", *kept, *mutations(kept, harness.words, MUTATIONS, harness.max_bytes, name)]:
        harness(data)


def test_parsers_with_native_code(tmp_path: Path) -> None:
    """In a process of their own, with a limit of memory; a crash there is a finding here."""
    native = [name for name, harness in HARNESSES.items() if harness.native]
    words = [word for name in native for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, str(RUN), "--mutations", str(MUTATIONS), "--out", str(tmp_path), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["harness"] for result in results] == native, done.stderr
    assert {result["harness"]: result["findings"] for result in results if result["findings"]} == {}
    assert all(result["executions"] > 2 for result in results)


def test_a_fault_is_found(tmp_path: Path) -> None:
    """The driver reports what a harness lets through, and keeps the input."""
    from fuzz.run import Recorder

    recorder = Recorder("manifest", tmp_path, float("inf"))
    recorder.harness = lambda data: 1 / len(data)  # type: ignore[assignment]
    recorder(b"x")
    recorder(b"")
    ((signature, path),) = recorder.findings.items()
    assert signature.startswith("ZeroDivisionError")
    assert Path(path).read_bytes() == b""


def test_a_campaign_continues(tmp_path: Path) -> None:
    """Executions and findings of an interrupted harness are kept, and a complete one is not repeated."""
    from fuzz.run import Recorder, campaign, fuzz_for, read_summary

    for data in (b"x", b""):
        recorder = Recorder("manifest", tmp_path / "manifest", float("inf"))
        recorder.harness = lambda data: 1 / len(data)  # type: ignore[assignment]
        recorder(data)
        recorder.save()
    summary = read_summary(tmp_path / "manifest")
    assert (summary["executions"], len(summary["findings"])) == (2, 1)
    assert fuzz_for("manifest", str(tmp_path), summary["seconds"]) == {**summary, "crashes": 0, "coverage": 0}
    (tmp_path / "campaign.jsonl").write_text('{"harness": "arpa", "seconds": 60.0}\n', encoding="utf-8")
    assert not list(campaign(["arpa"], str(tmp_path), 1.0))
