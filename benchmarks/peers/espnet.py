"""ESPnet's streaming Transformer and headsync, side by side: random weights, the same sizes, the same rate of tokens.

    python benchmarks/peers/espnet.py [--driver FILE] [--classes 52 5000] [--beam 10] [--seconds 10 30]

Both have 6 encoder and 12 decoder layers (256, 4 heads, 2048) and CTC, and are searched jointly, on one thread: ESPnet
by its contextual block encoder and its blockwise synchronous beam search, as they come (limits on the history, which it
has, are off by default), headsync by isolated windows 16 | 16 | 16 and HS-DACS. For every row both run, one after the
other. Figures are processor seconds for a second of sound. ESPnet runs in an environment of its own, made the first
time; its driver is a script that prints a JSON line with `total_cpu_rtf`, `first_token` and `peak_rss_mb`, such as the
one beside the checkout, and where there is none the row says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).parents[3] / "shared" / "bench" / "espnet_stream.py"
ALONE = ["torch==2.13.0"]
WITHOUT_DEPENDENCIES = ["espnet==202511"]
NEEDED = [
    "typeguard", "humanfriendly", "configargparse", "librosa", "soundfile", "torch_complex", "sentencepiece", "kaldiio",
    "h5py", "pyyaml", "editdistance", "packaging", "jamo", "ctc_segmentation",
]  # fmt: skip


def environment(folder: Path) -> Path:
    """The Python of ESPnet's environment, made if it is not there."""
    python = folder / "espnet" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "espnet", with_pip=True)
        for packages in (ALONE, ["--no-deps", *WITHOUT_DEPENDENCIES], NEEDED):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, capture_output=True)
    return python


def espnet(python: Path, driver: Path, classes: int, beam: int, seconds: float) -> dict[str, Any]:
    given = ["--vocab", classes, "--beam", beam, "--seconds", seconds]
    command = [python, driver, *map(str, given)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def ours(classes: int, beam: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        given = ["--classes", classes, "--beam", beam, "--seconds", seconds, "--json", out]
        subprocess.run([sys.executable, "-m", "headsync", "bench", *map(str, given)], check=True, capture_output=True)
        return json.loads(out.read_text())[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", type=Path, default=DRIVER)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    parser.add_argument("--classes", type=int, nargs="+", default=[52, 5000])
    parser.add_argument("--beam", type=int, nargs="+", default=[10])
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0, 30.0])
    given = parser.parse_args()
    if not given.driver.exists():
        sys.exit(f"{given.driver}: there is no driver for ESPnet here; name one with --driver")
    try:
        python = environment(given.folder.resolve())
    except subprocess.CalledProcessError as error:
        sys.exit(f"ESPnet could not be installed: {error.stderr.decode().strip().splitlines()[-1]}")
    print("| classes | beam | sound | ESPnet | headsync | times faster | first token: ESPnet | headsync |")
    print("|---|---|---|---|---|---|---|---|")
    for classes in given.classes:
        for beam in given.beam:
            for seconds in given.seconds:
                theirs, own = espnet(python, given.driver, classes, beam, seconds), ours(classes, beam, seconds)
                each = own["computing"] / own["seconds"]
                print(
                    f"| {classes} | {beam} | {seconds:.0f} s | {theirs['total_cpu_rtf']:.2f} s | {each:.2f} s "
                    f"| {theirs['total_cpu_rtf'] / each:.1f} | {theirs['first_token']['audio_s']:.2f} s "
                    f"| {own['first_token']:.1f} s |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
