"""Compares the decoding policies "gated" and "published" on the test set of the toy corpus or of another.

    python recipes/toy/policies.py MODEL ... [--corpus runs/data/toy] [--limit 0] [--lookahead 12 16 24] [--silence 2.0]

Each MODEL is a model folder, such as those of several seeds. Recordings are whole utterances. A row has, of each
model, word errors, what ended the output steps (threshold, M, end of the recording) and r; and the errors on the same
recordings after some seconds of silence: noise with the spectrum of the quietest frames of the recording.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from headsync import Recognizer
from headsync._arguments import SearchSettings
from headsync.corpora.audio_files import write_flac
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.evaluation.evaluate import EvaluationReport, evaluate
from headsync.frontend.audio import FloatArray, mix_down, read_audio

BEAMS = 1, 5
WINDOW = 512  # samples
COLUMNS = ("policy", "M", "beam", "errors", "threshold / M / end", "r", "after silence: errors", "insertions")


def background(samples: FloatArray, count: int, generator: np.random.Generator) -> FloatArray:
    """Noise with the spectrum of the quietest tenth of the windows."""
    windows = samples[: len(samples) // WINDOW * WINDOW].reshape(-1, WINDOW)
    quiet = windows[np.argsort(windows.std(1))[: max(1, len(windows) // 10)]]
    taper = np.hanning(WINDOW)
    power = (np.abs(np.fft.rfft(quiet * taper)) ** 2).mean(0) / (taper**2).sum()
    response = np.roll(np.fft.irfft(np.sqrt(power)), WINDOW // 2)
    noise = np.convolve(generator.standard_normal(count + WINDOW), response, mode="same")
    return noise[:count].astype(np.float32)


def after_silence(utterances: list[Utterance], folder: Path, seconds: float) -> list[Utterance]:
    """The same recordings with their background noise before them."""
    moved = []
    for number, utterance in enumerate(utterances):
        stereo, rate = read_audio(utterance.audio)
        samples = mix_down(stereo)
        noise = background(samples, round(seconds * rate), np.random.default_rng(number))
        path = folder / utterance.audio.name
        write_flac(path, np.concatenate([noise, samples]), rate)
        moved.append(replace(utterance, audio=path, seconds=utterance.seconds + seconds))
    return moved


def row(settings: SearchSettings, models: list[Path], spoken: list[Utterance], late: list[Utterance]) -> str:
    """A line of the table: the figures of every model with these settings."""
    whole: SearchSettings = {**settings, "whole_recording": True}
    recognizers = [Recognizer.load(model, **whole) for model in models]
    reports, after = ([evaluate(one, utterances) for one in recognizers] for utterances in (spoken, late))
    cells = [
        str(settings["policy"]),
        str(settings["lookahead_frames"]),
        str(settings["beam"]),
        ", ".join(f"{report.error_rate or 0:.1%}" for report in reports),
        ", ".join(map(_stops, reports)),
        ", ".join(f"{report.cost_ratio or 0:.2f}" for report in reports),
        ", ".join(f"{report.error_rate or 0:.1%}" for report in after),
        ", ".join(str(report.counts.insertions) for report in after),
    ]
    return f"| {' | '.join(cells)} |"


def _stops(report: EvaluationReport) -> str:
    return "-" if report.stops is None else " / ".join(f"{share:.0%}" for share in report.stops.values())


def rows(lookaheads: list[int]) -> list[SearchSettings]:
    """The gated policy with the first M, and the published one with each."""
    gated: list[SearchSettings] = [{"policy": "gated", "lookahead_frames": lookaheads[0]}]
    published: list[SearchSettings] = [{"policy": "published", "lookahead_frames": most} for most in lookaheads]
    return [{**settings, "beam": beam} for settings in gated + published for beam in BEAMS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--corpus", type=Path, default=Path("runs/data/toy"))
    parser.add_argument("--limit", type=int, default=0, help="utterances of the test set; 0: all")
    parser.add_argument("--lookahead", type=int, nargs="+", default=[12, 16, 24], metavar="M")
    parser.add_argument("--silence", type=float, default=2.0, help="seconds before the recordings of the last columns")
    given = parser.parse_args()
    spoken = read_manifest(given.corpus / "test.jsonl")[: given.limit or None]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory() as folder:
        late = after_silence(spoken, Path(folder), given.silence)
        for settings in rows(given.lookahead):
            print(row(settings, given.models, spoken, late), flush=True)


if __name__ == "__main__":
    main()
