"""ESPnet's streaming Transformer compared with headsync: random weights, the same sizes, the same rate of tokens.

    python benchmarks/peers/espnet.py [--classes 52 5000] [--beam 10] [--seconds 10 30] [--timeout 30]

Both have 6 encoder and 12 decoder layers (256, 4 heads, 2048), CTC and a joint search, on one thread: ESPnet with its
contextual block encoder and its blockwise synchronous beam search, with default settings (limits on the history are
off), headsync with isolated windows 16 | 16 | 16 and HS-DACS. For every row both run, one after the other, each in a
separate process. Figures are CPU seconds per second of audio, and peak memory. ESPnet runs in its own virtual
environment, created in the first run. If it exceeds the timeout, in minutes of CPU time, its row has the audio
processed so far, and the cost is that of this audio.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from itertools import product
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from random_model import untrained

THEIRS, OURS = (Path(__file__).parent / name for name in ("espnet_stream.py", "headsync_stream.py"))
RATES = {52: 15.0}  # tokens per second: characters; larger vocabularies have words or subwords
RATE = 4.0
ALONE = ["torch==2.13.0"]
WITHOUT_DEPENDENCIES = ["espnet==202511"]
NEEDED = [
    "typeguard", "humanfriendly", "configargparse", "librosa", "soundfile", "torch_complex", "sentencepiece", "kaldiio",
    "h5py", "pyyaml", "editdistance", "packaging", "jamo", "ctc_segmentation",
]  # fmt: skip


def environment(folder: Path) -> Path:
    """The Python of ESPnet's environment, which is created if it is missing."""
    python = folder / "espnet" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "espnet", with_pip=True)
        for packages in (ALONE, ["--no-deps", *WITHOUT_DEPENDENCIES], NEEDED):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, capture_output=True)
    return python


def run(*command: object) -> dict[str, Any]:
    """The last line that a driver prints, parsed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[1]} failed: {(done.stderr.strip().splitlines() or ['no error message'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def row(classes: int, beam: int, seconds: float, theirs: dict[str, Any], own: dict[str, Any]) -> str:
    cost = f"{theirs['total_cpu_rtf']:.2f} s"
    if not theirs["ended"]:
        cost += f", ended after {theirs['processed']:.0f} s of audio and {theirs['computing'] / 60:.0f} min"
    first = f"{theirs['first_token']:.2f} s" if theirs["first_token"] else "-"
    faster = theirs["total_cpu_rtf"] / own["total_cpu_rtf"]
    return (
        f"| {classes} | {beam} | {seconds:.0f} s | {cost} | {own['total_cpu_rtf']:.3f} s | {faster:.1f} | {first} "
        f"| {own['first_token']:.1f} s | {theirs['peak_rss_mb']:.0f} MB | {own['peak_rss_mb']:.0f} MB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    parser.add_argument("--classes", type=int, nargs="+", default=[52, 5000])
    parser.add_argument("--beam", type=int, nargs="+", default=[10])
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0, 30.0])
    parser.add_argument("--timeout", type=float, default=30.0)
    given = parser.parse_args()
    try:
        python = environment(given.folder.resolve())
    except subprocess.CalledProcessError as error:
        sys.exit(f"ESPnet could not be installed: {error.stderr.decode().strip().splitlines()[-1]}")
    print("| classes | beam | audio | ESPnet | headsync | times faster | first token: ESPnet | headsync ", end="")
    print("| memory: ESPnet | headsync |\n|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as models:
        for classes in given.classes:
            untrained(Path(models) / str(classes), classes)
        for classes, beam, seconds in product(given.classes, given.beam, given.seconds):
            settings = ["--beam", beam, "--seconds", seconds, "--rate", RATES.get(classes, RATE)]
            theirs = run(python, THEIRS, "--classes", classes, "--timeout", given.timeout, *settings)
            own = run(sys.executable, OURS, Path(models) / str(classes), *settings)
            print(row(classes, beam, seconds, theirs, own), flush=True)


if __name__ == "__main__":
    main()
