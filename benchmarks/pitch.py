"""The cost of pitch features, and the agreement of the pitch with Praat's.

    python benchmarks/pitch.py RECORDING ... [--decision-frames 10] [--seconds 8]

Prints the CPU milliseconds per second of audio on one thread: the whole recording at once, and streamed in chunks of
640 ms, as in a session with the paper's blocks, 100 ms and 10 ms. Times are the minimum of several rounds. If the
package praat-parselmouth is installed, it also compares pitch on the frames that are voiced for both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headsync.frontend.audio import FloatArray, mix_down, read_audio, resample
from headsync.frontend.pitch import Pitch

RATE = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--decision-frames", type=int, default=Pitch().decision_frames)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each recording")
    given = parser.parse_args()
    tracker = Pitch(decision_frames=given.decision_frames)
    sounds = [load(path)[: round(given.seconds * RATE)] for path in given.recordings]
    one = sounds[0]
    print(f"delay {tracker.delay_frames} frames; CPU time per second of audio")
    print(f"whole      {cost(lambda: tracker.whole(one), one):6.1f} ms")
    print(f"in 640 ms  {cost(lambda: stream(tracker, one, 10_240), one):6.1f} ms")
    print(f"in 100 ms  {cost(lambda: stream(tracker, one, 1_600), one):6.1f} ms")
    print(f"in 10 ms   {cost(lambda: stream(tracker, one, 160), one):6.1f} ms")
    compare(tracker, sounds)


def load(path: Path) -> FloatArray:
    samples, rate = read_audio(path)
    return resample(mix_down(samples), rate)


def stream(tracker: Pitch, samples: FloatArray, size: int) -> None:
    state = tracker.start()
    for begin in range(0, len(samples), size):
        _, state = tracker.step(samples[begin : begin + size], state)
    tracker.step(samples[:0], state, final=True)


def cost(work: Callable[[], object], samples: FloatArray, rounds: int = 10) -> float:
    """Milliseconds per second of audio."""
    taken = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return 1000 * min(taken) / (len(samples) / RATE)


def compare(tracker: Pitch, sounds: list[FloatArray]) -> None:
    try:
        import parselmouth
    except ModuleNotFoundError:
        print("no comparison: pip install praat-parselmouth")
        return
    errors: list[float] = []
    for samples in sounds:
        track = tracker.track(samples)
        praat = parselmouth.Sound(samples.astype(float), RATE).to_pitch_ac(0.01, 60.0, pitch_ceiling=400.0)
        times = 0.0125 + 0.01 * np.arange(len(track.hertz)) + 0.5 / track.hertz  # of the middle of what is correlated
        theirs = np.array([praat.get_value_at_time(at) for at in times])
        both = (track.voicing > 0.5) & np.isfinite(theirs)
        errors += list(np.abs(track.hertz[both] / theirs[both] - 1))
    gross = np.mean(np.array(errors) > 0.2)
    print(f"Praat: {len(errors)} frames voiced for both, median difference {100 * np.median(errors):.2f} %, "
          f"beyond 20 %: {100 * gross:.2f} %")  # fmt: skip


if __name__ == "__main__":
    main()
