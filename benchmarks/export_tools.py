"""Score the exported files of `headsync evaluate` with the tools that they are for, and compare the figures.

    python -m venv runs/tools && runs/tools/bin/pip install simuleval simulstream setuptools
    python benchmarks/export_tools.py english MANIFEST --tools runs/tools/bin --sclite /usr/lib/sctk/bin/sclite

sclite is in Debian's package sctk. A tool that is not given or not installed is skipped. The exit status is 1 if a
figure differs by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple


class Compared(NamedTuple):
    """One figure of a tool, and ours."""

    tool: str
    figure: str
    theirs: float
    ours: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return abs(self.theirs - self.ours) <= self.tolerance


def evaluate(model: str, manifest: Path, folder: Path, limit: int) -> dict[str, Any]:
    """The report of `headsync evaluate`, with all exports in a folder."""
    files = {
        "json": "report.json",
        "ctm": "hyp.ctm",
        "trn": "trn",
        "simuleval": "simuleval",
        "simulstream": "simulstream",
    }
    options = [part for name, file in files.items() for part in (f"--{name}", str(folder / file))]
    command = [sys.executable, "-m", "headsync", "evaluate", model, str(manifest), "--limit", str(limit), *options]
    subprocess.run([*command, "--normalise", "english"], check=True, stdout=subprocess.DEVNULL)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def output_of(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sclite(program: Path, folder: Path, report: dict[str, Any]) -> list[Compared]:
    """Words and errors."""
    command = [str(program), "-r", str(folder / "trn/ref.trn"), "trn", "-h", str(folder / "trn/hyp.trn"), "trn"]
    table = output_of([*command, "-i", "rm", "-o", "rsum", "stdout"])
    row = next(line for line in table.splitlines() if re.match(r"\s*\| *Sum", line))
    numbers = [int(number) for number in re.findall(r"\d+", row)]  # sentences, words, right, sub, del, ins, err, ...
    counts = report["counts"]
    names = ("words", "substitutions", "deletions", "insertions")
    found = (numbers[1], *numbers[3:6])
    return [Compared("sclite", name, value, counts[name], 0) for name, value in zip(names, found, strict=True)]


def simuleval(programs: Path, folder: Path, report: dict[str, Any]) -> list[Compared]:
    """LAAL, in seconds."""
    command = [str(programs / "simuleval"), "--score-only", "--output", str(folder / "simuleval")]
    last = output_of([*command, "--latency-metrics", "LAAL"]).splitlines()[-1]
    return [Compared("SimulEval", "LAAL", float(last.split()[-1]) / 1000, report["delays"]["laal"]["mean"], 0.001)]


def simulstream(programs: Path, folder: Path, report: dict[str, Any]) -> list[Compared]:
    """Normalised erasure."""
    config, log = folder / "simulstream/config.yaml", folder / "simulstream/metrics.jsonl"
    text = output_of([str(programs / "simulstream_stats"), "--eval-config", str(config), "--log-file", str(log)])
    stats = json.loads(text[text.index("{") :])
    theirs = float(stats["normalized_erasure"]["value"])
    return [Compared("simulstream", "normalised erasure", theirs, report["stability"]["normalised_erasure"], 0.001)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--limit", type=int, default=20, help="number of utterances")
    parser.add_argument("--tools", type=Path, help="folder with simuleval and simulstream_stats")
    parser.add_argument("--sclite", type=Path)
    arguments = parser.parse_args()
    rows: list[Compared] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        report = evaluate(arguments.model, arguments.manifest, folder, arguments.limit)
        if arguments.sclite:
            rows += sclite(arguments.sclite, folder, report)
        if arguments.tools and (arguments.tools / "simuleval").is_file():
            rows += simuleval(arguments.tools, folder, report)
        if arguments.tools and (arguments.tools / "simulstream_stats").is_file():
            rows += simulstream(arguments.tools, folder, report)
    print("| tool | figure | the tool's | headsync's | agrees |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.tool} | {row.figure} | {row.theirs:g} | {row.ours:g} | {'yes' if row.agrees else 'no'} |")
    sys.exit(0 if rows and all(row.agrees for row in rows) else 1)


if __name__ == "__main__":
    main()
