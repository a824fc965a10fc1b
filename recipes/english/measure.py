"""Measure a model on all sets of `evaluation_sets.py` and print the table of `results/english.md`.

    python recipes/english/measure.py english                       # development sets
    python recipes/english/measure.py english --test                # test sets: for a final model only
    python recipes/english/measure.py english --sets dev-clean-300 background

Each set is streamed by `headsync evaluate` on one thread; its figures and texts are in runs/english/figures/MODEL. A
set that has figures of the same weights and settings is not measured again, so a run that was stopped continues.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from speech import DATA, RUNS

from headsync.model_folder import find, sha256

ALIGNED = ["--align", "pocketsphinx"]
TEST_CLEAN = DATA / "librispeech/test.jsonl"
DEVELOPMENT = {
    "dev-clean-300": ("LibriSpeech dev-clean, 300 utterances", ALIGNED),
    "commonvoice-dev": ("Common Voice, development speakers", ALIGNED),
    "harpervalley-dev": ("Harper Valley (telephone), development speakers", []),
    "background": ("silence, hum, noise, music, babble", []),
}
TEST = {
    "test-clean": ("LibriSpeech test-clean", []),
    "test-other": ("LibriSpeech test-other, 30 utterances", []),
    "commonvoice-test": ("Common Voice, test speakers", ALIGNED),
    "harpervalley-test": ("Harper Valley (telephone), test speakers", []),
    "speechocean-test": ("speechocean762 test", []),
}
LONG: dict[str, tuple[str, list[str]]] = {
    "hour": ("dev-clean, one session of an hour", []),
    "hour-utterances": ("dev-clean, the same utterances one by one", []),
}
SETS = DEVELOPMENT | TEST | LONG


def manifest(name: str) -> Path:
    return TEST_CLEAN if name == "test-clean" else RUNS / f"sets/{name}.jsonl"


def measure(model: str, name: str, folder: Path, digest: str) -> dict[str, Any]:
    """The figures of a set, from the file of an earlier run if weights and settings are the same."""
    path = folder / f"{name}.json"
    if path.is_file():
        figures: dict[str, Any] = json.loads(path.read_text())
        if figures["model_files"] == digest:
            return figures
    folder.mkdir(parents=True, exist_ok=True)
    given = [model, str(manifest(name)), "--normalise", "english", *SETS[name][1], "--json", str(path)]
    subprocess.run(
        [sys.executable, "-m", "headsync", "evaluate", *given],
        check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    figures = json.loads(path.read_text()) | {"model_files": digest}
    path.write_text(json.dumps(figures, ensure_ascii=False, indent=1))
    return figures


def cells(name: str, figures: dict[str, Any]) -> list[str]:
    """A row of the table."""
    counts, interval = figures["counts"], figures["interval_by_speaker"] or figures["interval"]
    rate = f"{figures['invented_per_minute']:.2f} words per minute"
    if figures["error_rate"] is not None:
        between = f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""
        rate = f"{100 * figures['error_rate']:.1f} %{between}"
    edits = " / ".join(str(counts[kind]) for kind in ("substitutions", "deletions", "insertions"))
    delay = figures["delays"]["user_perceived"] if figures["word_times"] == "reference" else None
    latency = f"{delay['p50']:.2f} / {delay['p90']:.2f} s" if delay else ""
    ratio = "" if figures["cost_ratio"] is None else f"{figures['cost_ratio']:.2f}"
    return [
        SETS[name][0],
        str(figures["utterances"]),
        rate,
        edits,
        latency,
        ratio,
        f"{figures['real_time_factor']:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name of a model, or a folder")
    parser.add_argument("--test", action="store_true", help="the test sets")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), help="these sets alone")
    arguments = parser.parse_args()
    digest = " ".join(sha256(find(arguments.model) / name) for name in ("weights.safetensors", "config.toml"))
    folder = RUNS / "figures" / Path(arguments.model).name
    header = ["set", "recordings", "WER (95 % by speaker)", "S / D / I", "latency, p50 / p90", "r", "real-time factor"]
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|", flush=True)
    for name in arguments.sets or (TEST if arguments.test else DEVELOPMENT):
        print(f"| {' | '.join(cells(name, measure(arguments.model, name, folder, digest)))} |", flush=True)


if __name__ == "__main__":
    main()
