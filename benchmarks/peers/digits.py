"""Recognition of digit strings: the shipped model compared with Moonshine and PocketSphinx.

    python benchmarks/peers/digits.py MANIFEST [--limit 100] [--folder runs/peers]

Each recogniser runs in its own virtual environment, created under the folder in the first run; if it cannot be
installed, its row has the reason. All get the same recordings, in chunks of 0.1 s, one recogniser after the other.
Times are CPU times. Texts are compared as digit words: figures are spelt out, "oh" is zero, case and punctuation do not
count; other words are errors.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

import numpy as np

from headsync.corpora.manifest import read_manifest
from headsync.evaluation.error_rate import count_errors
from headsync.frontend.audio import mix_down, read_audio, resample

PACKAGES = {
    "moonshine": "moonshine-voice==0.0.49",
    "pocketsphinx": "pocketsphinx==5.1.1",
    "vosk": "vosk==0.3.45",
}
ROWS = {  # name of the driver: where it runs
    "headsync": None,
    "headsync-int8": None,
    "moonshine": "moonshine",
    "pocketsphinx": "pocketsphinx",
    "pocketsphinx-grammar": "pocketsphinx",
}
DRIVER = Path(__file__).parent / "drive.py"
FIGURES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def normalised(text: str) -> str:
    """A text in digit words."""
    words = re.sub(r"[^a-z0-9']+", " ", re.sub(r"(\d)", r" \1 ", text.lower())).split()
    spelt = [FIGURES[int(word)] if word.isdigit() else word for word in words]
    return " ".join("zero" if word in ("oh", "o") else word for word in spelt)


def environment(folder: Path, name: str) -> Path:
    """The Python of a peer's environment, which is created if it is missing."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        venv.create(folder / name, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGES[name]], check=True, capture_output=True)
    return python


def prepare(manifest: Path, limit: int | None, out: Path) -> dict[str, str]:
    """Recordings as raw samples, and their texts."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.raw"):
        old.unlink()
    texts = {}
    for number, utterance in enumerate(read_manifest(manifest)[:limit]):
        samples, rate = read_audio(utterance.audio)
        sound = np.clip(resample(mix_down(samples), rate) * 32768, -32768, 32767).astype("<i2")
        (out / f"{number:05}.raw").write_bytes(sound.tobytes())
        texts[f"{number:05}"] = utterance.text
    return texts


def size_mb(python: Path) -> float:
    """The size of the environment on disk, without package installers."""
    packages = python.parent.parent / "lib"
    left_out = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    files = (path for path in packages.rglob("*") if path.is_file() and not set(path.parts) & set(left_out))
    return sum(path.stat().st_size for path in files) / 1e6


def run(name: str, where: str | None, sounds: Path, folder: Path) -> tuple[dict, Path]:
    python = environment(folder, where) if where else Path(sys.executable)
    began = time.perf_counter()
    done = subprocess.run([python, DRIVER, name, sounds], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return {**result, "wall": time.perf_counter() - began}, python


def row(name: str, result: dict, texts: dict[str, str], megabytes: str) -> str:
    counts = [count_errors(normalised(texts[one["id"]]), normalised(one["text"])) for one in result["results"]]
    wrong = sum(each.substitutions + each.deletions + each.insertions for each in counts)
    computing = sum(one["computing"] for one in result["results"]) / sum(one["seconds"] for one in result["results"])
    delays = sorted(one["delay"] for one in result["results"])
    return (
        f"| {name} | {wrong / sum(each.words for each in counts):.1%} | {computing:.3f} s "
        f"| {delays[len(delays) // 2]:.2f} s | {result['loading']:.2f} s | {result['peak_mb']:.0f} MB | {megabytes} |"
    )


def export(folder: Path) -> None:
    """Export the current shipped model in int8."""
    command = [sys.executable, "-m", "headsync", "export", "digits-en", str(folder), "--int8"]
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    given = parser.parse_args()
    sounds = (given.folder / "sounds").resolve()
    texts = prepare(given.manifest, given.limit, sounds)
    print("| recogniser | error rate | computing a second | text after the end | loading | memory | on disk |")
    print("|---|---|---|---|---|---|---|")
    for name, where in ROWS.items():
        try:
            if name == "headsync-int8":
                export(given.folder / "digits-int8")
            result, python = run(name, where, sounds, given.folder.resolve())
        except (subprocess.CalledProcessError, OSError) as error:
            reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1][:120]
            print(f"| {name} | could not be installed or run: {reason} | | | | | |")
            continue
        print(row(name, result, texts, f"{size_mb(python):.0f} MB" if where else "-"), flush=True)


if __name__ == "__main__":
    main()
