"""Real-time factor and memory of a model on one thread, and how both grow with the length of the stream.

    python benchmarks/stream.py [--model NAME_OR_FOLDER] [--seconds 10 60 600]

Each length runs in a separate process. The bundled recordings, with pauses between them, are pushed in chunks of 0.1 s.
Times are CPU times. `last tenth` is the real-time factor of the last tenth of the stream: if it equals that of the
whole stream, cost does not grow.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RATE = 16_000
PIECE = RATE // 10


def stream(seconds: float) -> np.ndarray:
    """The bundled recordings repeated, with pauses of 0.3 to 3 s between them."""
    import headsync
    from headsync.frontend.audio import mix_down, read_audio, resample

    rng = np.random.default_rng(1)
    folder = Path(headsync.__file__).parent / "demo"
    takes = [resample(mix_down(samples), rate) for samples, rate in map(read_audio, sorted(folder.glob("*.flac")))]
    pieces, total = [], 0
    while total < seconds * RATE:
        pause = 1e-4 * rng.standard_normal(int(rng.uniform(0.3, 3.0) * RATE)).astype(np.float32)
        pieces += [takes[rng.integers(len(takes))], pause]
        total += len(pieces[-1]) + len(pieces[-2])
    return np.concatenate(pieces)[: int(seconds * RATE)]


def one(model: str | None, seconds: float) -> dict[str, float]:
    """One stream, in this process."""
    import headsync

    samples = stream(seconds)
    session = headsync.Recognizer.load(model).session()
    before = _resident()
    clock, words = [time.process_time()], 0
    for first in range(0, len(samples), PIECE):
        events = session.push(samples[first : first + PIECE], RATE)
        words += sum(len(e.words) for e in events if isinstance(e, headsync.Final))
        clock.append(time.process_time())
    words += sum(len(e.words) for e in session.finish() if isinstance(e, headsync.Final))
    tenth = max(1, len(clock) // 10)
    return {
        "seconds": seconds,
        "words": words,
        "real_time_factor": (clock[-1] - clock[0]) / seconds,
        "last_tenth": (clock[-1] - clock[-1 - tenth]) / (tenth * PIECE / RATE),
        "loaded_mb": before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "audio_mb": samples.nbytes / 2**20,
    }


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0, 60.0, 600.0])
    parser.add_argument("--one", action="store_true", help="a single length, as JSON, in this process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.model, given.seconds[0])))
        return
    print("| audio | words | real-time factor | last tenth | memory, loaded | memory, peak | of it audio |")
    print("|---|---|---|---|---|---|---|")
    for seconds in given.seconds:
        command = [sys.executable, __file__, "--one", "--seconds", str(seconds)]
        command += ["--model", given.model] if given.model else []
        r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"| {seconds:.0f} s | {r['words']} | {r['real_time_factor']:.4f} | {r['last_tenth']:.4f} "
            f"| {r['loaded_mb']:.0f} MB | {r['peak_mb']:.0f} MB | {r['audio_mb']:.0f} MB |"
        )


if __name__ == "__main__":
    main()
