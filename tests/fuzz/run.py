"""Fuzz the parsers of outside bytes.

    python tests/fuzz/run.py --seconds 300                   every harness, guided by coverage (needs atheris)
    python tests/fuzz/run.py --seconds 300 --only arpa       one of them
    python tests/fuzz/run.py --mutations 200                 the kept inputs and seeded mutations of them
    python tests/fuzz/run.py --minutes 30                    a campaign: every harness, at the lowest priority

Each harness runs in a process with a limit of memory. Seconds and minutes are of processor time. An exception that is
not an error of the package, an input that takes longer than 5 s, a crash and too much memory are findings; the input is
kept in the folder --out. One JSON object is printed for each harness. A campaign also appends it to campaign.jsonl in
--out, starts a harness again after a crash, and continues when it is repeated with the same --out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

SLOW_SECONDS = 5.0  # processor time of one input
MEMORY_BYTES = 4 << 30  # address space, which libraries occupy much of
RESIDENT_MIB = 1536
SAVE_SECONDS = 10.0
MOST_CRASHES = 20  # of a harness in a campaign
NOTHING: dict[str, Any] = {"executions": 0, "seconds": 0.0, "peak_mib": 0, "findings": {}}
INSTRUMENTED = [
    *(f"headsync.{name}" for name in ("_parse", "config", "corpora", "engine", "frontend", "lm", "model_folder")),
    *(f"headsync.{name}" for name in ("cli.wav_stdin", "recipe", "server", "text")),
    *("tomllib", "safetensors", "starlette.formparsers", "python_multipart"),
]


class Recorder:
    """Runs one harness and keeps what it finds."""

    def __init__(self, name: str, out: Path, seconds: float) -> None:
        from fuzz.all import HARNESSES

        self.harness, self.out, self.seconds = HARNESSES[name], out, seconds
        self.earlier = read_summary(out)
        self.executions, self.findings = 0, dict[str, str](self.earlier["findings"])
        self.start = self.saved = time.process_time()
        out.mkdir(parents=True, exist_ok=True)

    def __call__(self, data: bytes) -> None:
        data, before = bytes(data), time.process_time()
        (self.out / "last").write_bytes(data)
        try:
            self.harness(data)
        except Exception as error:
            self.keep(_signature(error), data)
        self.executions += 1
        now = time.process_time()
        if now - before > SLOW_SECONDS:
            self.keep(f"slow: more than {SLOW_SECONDS:g} s", data)
        if now - self.start > self.seconds:
            self.save()
            os._exit(0)
        if now - self.saved > SAVE_SECONDS:
            self.save()

    def keep(self, signature: str, data: bytes) -> None:
        if signature not in self.findings:
            path = self.out / f"finding-{hashlib.sha256(data).hexdigest()[:10]}"
            path.write_bytes(data)
            (self.out / f"{path.name}.txt").write_text(f"{signature}\n{traceback.format_exc()}", encoding="utf-8")
            self.findings[signature] = str(path)
            self.save()

    def save(self) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        self.saved = time.process_time()
        write_summary(self.out, {
            "executions": self.earlier["executions"] + self.executions,
            "seconds": round(self.earlier["seconds"] + self.saved - self.start, 1),
            "peak_mib": max(self.earlier["peak_mib"], peak),
            "findings": self.findings,
        })  # fmt: skip


def read_summary(out: Path) -> dict[str, Any]:
    path = out / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else NOTHING
    return summary


def write_summary(out: Path, summary: dict[str, Any]) -> None:
    (out / "new.json").write_text(json.dumps(summary), encoding="utf-8")
    (out / "new.json").replace(out / "summary.json")


def _signature(error: Exception) -> str:
    """The kind of an exception and where it was raised, as far as possible in the package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/headsync/" in frame.filename] or frames
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"


def mutate(name: str, out: Path, count: int) -> None:
    """The kept inputs and mutations of them, the same ones every time."""
    from fuzz.all import HARNESSES, inputs
    from fuzz.mutate import mutations

    recorder, kept = Recorder(name, out, float("inf")), inputs(name)
    harness = HARNESSES[name]
    for data in [b"", *kept, *mutations(kept, harness.words, count // harness.cost, harness.max_bytes, name)]:
        recorder(data)
    recorder.save()


def guide(name: str, out: Path, seconds: float) -> None:
    """Inputs that libFuzzer makes, guided by the coverage of Python code."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.all import HARNESSES, inputs

        HARNESSES[name].seeds()
    corpus, words = out / "corpus", out / "words"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs(name)):
        (corpus / f"seed-{number}").write_bytes(data)
        Recorder(name, out, float("inf"))(data)  # loads models before the time starts
    quoted = ('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in HARNESSES[name].words)
    words.write_text("".join(quoted), encoding="utf-8")
    options = [f"-max_len={HARNESSES[name].max_bytes}", f"-dict={words}", f"-artifact_prefix={out}/"]
    limits = ["-timeout=120", f"-rss_limit_mb={RESIDENT_MIB}", "-seed=1", "-reload=0"]
    atheris.Setup([name, *options, *limits, str(corpus)], Recorder(name, out, seconds))
    atheris.Fuzz()


def run(names: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Some harnesses in a process of their own; what each found. Only the last one started can have ended it."""
    for name in names:
        shutil.rmtree(Path(options.out) / name, ignore_errors=True)
    amount = ["--seconds", str(options.seconds)] if options.seconds else ["--mutations", str(options.mutations)]
    code, log = start(names, options.out, amount)
    for name in names:
        saved = Path(options.out) / name / "summary.json"
        summary = read_summary(saved.parent)
        if code and (name == names[-1] or not saved.exists()):
            summary = {**summary, "findings": {**summary["findings"], f"the process ended with {code}": str(log)}}
        yield {"harness": name, **summary, "coverage": coverage(log)}


def start(names: list[str], out: str, amount: list[str]) -> tuple[int, Path]:
    """Run the process of some harnesses; its exit status, and the path of its output."""
    for name in names:
        (Path(out) / name).mkdir(parents=True, exist_ok=True)
    log = Path(out) / names[0] / "log"
    with log.open("wb") as file:
        command = [sys.executable, __file__, "--worker", ",".join(names), "--out", out, *amount]
        return subprocess.run(command, stdout=file, stderr=file, check=False).returncode, log


def coverage(log: Path) -> int:
    covered = re.findall(rb"cov: (\d+)", log.read_bytes()) if log.exists() else []
    return int(covered[-1]) if covered else 0


def campaign(names: list[str], out: str, minutes: float) -> Iterator[dict[str, Any]]:
    """Every harness for some minutes of processor time, without those that an earlier campaign completed."""
    results = Path(out) / "campaign.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    complete = {line["harness"] for line in map(json.loads, lines) if line["seconds"] >= 60 * minutes}
    for name in names:
        if name not in complete:
            result = {"harness": name, **fuzz_for(name, out, 60 * minutes)}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            yield result


def fuzz_for(name: str, out: str, seconds: float) -> dict[str, Any]:
    """Fuzz until the time is used, in a new process after each crash."""
    folder, crashes, log = Path(out) / name, 0, Path(out) / name / "log"
    while (left := seconds - read_summary(folder)["seconds"]) > 0 and crashes < MOST_CRASHES:
        code, _ = start([name], out, ["--seconds", str(left)])
        if code:
            crashes += 1
            shutil.copy(log, folder / f"crash-{crashes}.txt")
            if (folder / "last").exists():
                shutil.copy(folder / "last", folder / f"crash-{crashes}")
            summary = read_summary(folder)
            found = {f"the process ended with {code}": str(folder / f"crash-{crashes}")}
            write_summary(folder, {**summary, "findings": {**summary["findings"], **found}})
    return {**read_summary(folder), "crashes": crashes, "coverage": coverage(log)}


def work(names: list[str], options: argparse.Namespace) -> None:
    """The process of `run`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for name in names:
        if options.seconds:
            guide(name, Path(options.out) / name, options.seconds)
        mutate(name, Path(options.out) / name, options.mutations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--mutations", type=int, default=200)
    parser.add_argument("--only", action="append", help="a harness; may be repeated")
    parser.add_argument("--out", default="runs/fuzz")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out = str(Path(options.out).absolute())
    if options.worker:
        work(options.worker.split(","), options)
        return
    failed = False
    for result in results(options):
        failed |= bool(result["findings"])
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    sys.exit(failed)


def results(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    names = options.only or all_names()
    if options.minutes:
        os.nice(19)
        yield from campaign(names, options.out, options.minutes)
        return
    for group in [[name] for name in names] if options.seconds else [names]:
        yield from run(group, options)


def all_names() -> list[str]:
    from fuzz.all import HARNESSES

    return list(HARNESSES)


if __name__ == "__main__":
    main()
