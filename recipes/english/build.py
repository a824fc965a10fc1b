"""From public corpora and Moonshine's weights to the English model folder, in five resumable stages.

    python recipes/english/build.py                    # all stages; those that are complete are skipped
    python recipes/english/build.py --only encoder     # one stage: data, labels, encoder, decoder, model

Each stage runs the scripts of this folder one after the other. Every script continues where it was stopped, so the same
command resumes an interrupted build. A finished command leaves a mark in runs/english/done; delete it to run that
command again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from speech import RUNS

HERE, DONE = Path(__file__).resolve().parent, RUNS / "done"
TEXTS = ["librispeech", "commonvoice", "harpervalley", "commonvoice-v1"]
LAST = str(RUNS / "adapt/last")
STAGES = {
    "data": [["moonshine.py", "fetch"], ["corpora.py", *TEXTS, "report"], ["moonshine.py", "check"]],
    "labels": [
        ["label.py", "tiny", *TEXTS],
        ["label.py", "tiny", *TEXTS[:3], "--dev", "100"],
        ["label.py", "merge"],
        ["vocabulary.py"],
    ],
    "encoder": [["adapt.py", "train"], ["adapt.py", "table", "--checkpoint", LAST]],
    "decoder": [
        ["cache.py", "dev", "--checkpoint", LAST],
        ["cache.py", "train", "--checkpoint", LAST, "--copies", "1"],
        ["background.py", "--checkpoint", LAST],
        ["train.py", "layers"],
        ["train.py", "whole"],
        ["finetune.py"],
        ["finetune.py", "--held-from", "2"],
    ],
    "model": [["export.py", str(RUNS / "english"), "--half"]],
}


def run(command: list[str]) -> None:
    """Run one script unless it has finished before; one thread."""
    mark = DONE / "-".join(part.replace("/", "_") for part in command)
    if mark.is_file():
        print(f"done: {' '.join(command)} ({mark.read_text()})", flush=True)
        return
    print(f"run: {' '.join(command)}", flush=True)
    began = time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(HERE / command[0]), *command[1:]], check=True, env=environment)
    DONE.mkdir(parents=True, exist_ok=True)
    mark.write_text(f"{(time.monotonic() - began) / 60:.1f} min")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(STAGES), help="run this stage alone")
    arguments = parser.parse_args()
    for name, commands in STAGES.items():
        if arguments.only in (None, name):
            for command in commands:
                run(command)


if __name__ == "__main__":
    main()
