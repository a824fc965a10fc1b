"""WER of a small Vosk model and of PocketSphinx on English recordings.

    python benchmarks/peers/error_rates.py MANIFEST [MANIFEST ...] [--limit 100] [--folder runs/peers]

Each recogniser runs in its own virtual environment, created under the folder in the first run, on one thread. It gets
every recording alone, in chunks of 0.1 s. Texts are compared after the English normalisation of Whisper.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from digits import DRIVER, environment, prepare
from live import vosk_model

from headsync.evaluation.error_rate import count_errors
from headsync.evaluation.normalise import normaliser

PEERS = {"vosk": "Vosk, small English model", "pocketsphinx": "PocketSphinx"}


def error_rate(peer: str, manifest: Path, limit: int | None, folder: Path) -> tuple[float, float]:
    """Word error rate, and processor time per second of sound."""
    python, sounds = environment(folder, peer), (folder / f"sounds-{peer}").resolve()
    texts, normalised = prepare(manifest, limit, sounds), normaliser("english")
    done = subprocess.run(
        [python, DRIVER, peer, sounds],
        check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    counts = [count_errors(normalised(texts[one["id"]]), normalised(one["text"])) for one in results]
    errors = sum(each.substitutions + each.deletions + each.insertions for each in counts)
    seconds = sum(one["seconds"] for one in results)
    return errors / sum(each.words for each in counts), sum(one["computing"] for one in results) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifests", nargs="+", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    vosk_model(given.folder)
    print("| recogniser | set | WER | processor time per second |\n|---|---|---|---|")
    for manifest in given.manifests:
        for peer, name in PEERS.items():
            rate, computing = error_rate(peer, manifest, given.limit, given.folder.resolve())
            print(f"| {name} | {manifest.stem} | {rate:.1%} | {computing:.3f} s |", flush=True)


if __name__ == "__main__":
    main()
