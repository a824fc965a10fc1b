"""Score the exported files of `headsync evaluate` with the tools that they are for, and compare the figures.

    python -m venv runs/tools && runs/tools/bin/pip install simuleval simulstream mweralign setuptools
    python benchmarks/export_tools.py english MANIFEST --tools runs/tools/bin --sclite /usr/lib/sctk/bin/sclite

sclite is in Debian's package sctk. A tool that is not given or not installed is skipped. The exit status is 1 if a
figure differs by more than rounding. A CTM has the recognised words as they are, so its errors are compared with those
of texts in lower case without other normalisation. simulstream's log removes words from the end only: a word after a
changed word gets the time of the change, in the expected LAAL too.
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

from headsync.corpora.manifest import Utterance, read_manifest
from headsync.evaluation.error_rate import ErrorCounts, count_errors
from headsync.evaluation.latency import laal

COUNTS = ("words", "substitutions", "deletions", "insertions")


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


def write_stm(path: Path, utterances: list[Utterance]) -> None:
    """The reference of a CTM: each recording is one segment."""
    rows = sorted(
        ("_".join(one.id.split()), f"1 {one.speaker or 'unknown'} 0.0 {one.seconds:.3f} {one.text}")
        for one in utterances
    )
    path.write_text("".join(f"{name} {rest}\n" for name, rest in rows))


def sclite(program: Path, folder: Path, report: dict[str, Any], utterances: list[Utterance]) -> list[Compared]:
    """Words and errors of the trn files and of the CTM; sclite ignores case."""
    trn = sclite_counts(program, folder / "trn/ref.trn", "trn", folder / "trn/hyp.trn", "trn", "-i", "rm")
    rows = [Compared("sclite, trn", name, trn[name], report["counts"][name], 0) for name in COUNTS]
    write_stm(folder / "ref.stm", utterances)
    texts = [(one["reference"].lower(), one["hypothesis"].lower()) for one in report["outcomes"]]
    ours = sum((count_errors(*pair) for pair in texts), ErrorCounts())
    ctm = sclite_counts(program, folder / "ref.stm", "stm", folder / "hyp.ctm", "ctm")
    return rows + [Compared("sclite, CTM", name, ctm[name], getattr(ours, name), 0) for name in COUNTS]


def sclite_counts(
    program: Path, reference: Path, kind: str, hypothesis: Path, form: str, *options: str
) -> dict[str, int]:
    """The sums of a report of sclite."""
    command = [str(program), "-r", str(reference), kind, "-h", str(hypothesis), form, *options]
    table = output_of([*command, "-o", "rsum", "stdout"])
    row = next(line for line in table.splitlines() if re.match(r"\s*\| *Sum", line))
    numbers = [int(number) for number in re.findall(r"\d+", row)]  # sentences, words, right, sub, del, ins, err, ...
    return dict(zip(COUNTS, (numbers[1], *numbers[3:6]), strict=True))


def simuleval(programs: Path, folder: Path, report: dict[str, Any]) -> list[Compared]:
    """LAAL, in seconds."""
    command = [str(programs / "simuleval"), "--score-only", "--output", str(folder / "simuleval")]
    last = output_of([*command, "--latency-metrics", "LAAL"]).splitlines()[-1]
    return [Compared("SimulEval", "LAAL", float(last.split()[-1]) / 1000, report["delays"]["laal"]["mean"], 0.001)]


def simulstream(programs: Path, folder: Path, report: dict[str, Any]) -> list[Compared]:
    """Normalised erasure and LAAL, in seconds."""
    config, log = folder / "simulstream/config.yaml", folder / "simulstream/metrics.jsonl"
    files = ["--eval-config", str(config), "--log-file", str(log)]
    text = output_of([str(programs / "simulstream_stats"), *files])
    erasure = float(json.loads(text[text.index("{") :])["normalized_erasure"]["value"])
    files += ["--reference", str(folder / "simulstream/reference.txt")]
    files += ["--audio-definition", str(folder / "simulstream/audio.yaml")]
    text = output_of([str(programs / "simulstream_score_latency"), "--scorer", "stream_laal", *files])
    lag = float(re.findall(r"ideal_latency=([\d.]+)", text)[0])
    return [
        Compared("simulstream", "normalised erasure", erasure, report["stability"]["normalised_erasure"], 0.001),
        Compared("simulstream", "LAAL", lag, laal_of_log(log, report), 0.001),
    ]


def laal_of_log(log: Path, report: dict[str, Any]) -> float:
    """LAAL with the times of the last lines that add each word; the last line has the length of the audio."""
    found: list[list[float]] = [[] for _ in report["outcomes"]]
    seconds = [0.0] * len(found)
    for line in map(json.loads, log.read_text().splitlines()):
        if "metadata" not in line:
            times, seconds[line["id"]] = found[line["id"]], line["total_audio_processed"]
            del times[len(times) - len(line["deleted_tokens"]) :]
            times += [line["total_audio_processed"]] * len(line["generated_tokens"])
    words = [len(one["reference"].split()) for one in report["outcomes"]]
    lags = [lag for each in zip(found, words, seconds, strict=True) if (lag := laal(*each)) is not None]
    return sum(lags) / len(lags)


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
            utterances = read_manifest(arguments.manifest)[: arguments.limit]
            rows += sclite(arguments.sclite, folder, report, utterances)
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
