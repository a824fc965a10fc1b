"""The time of each part of recognition, with both engines: a network of the paper's size, random weights.

    python benchmarks/where.py [--classes 52] [--rate 15] [--beam 10] [--seconds 10] [--engines torch onnx int8]

CPU milliseconds per second of audio, on one thread; "rest" is features, search and everything else. The engines
alternate within one run, stream by stream.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from headsync.engine import Engine, load_engine
from random_model import untrained
from speed import measure

PARTS = ("embed", "encode", "place", "decode")


class Watched:
    """An engine whose calls are timed."""

    def __init__(self, inner: Engine) -> None:
        self.inner, self.spent = inner, defaultdict[str, float](float)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name not in PARTS:
            return call

        def timed(*arguments: Any) -> Any:
            began = time.process_time()
            answer = call(*arguments)
            self.spent[name] += time.process_time() - began
            return answer

        return timed


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The parser of the arguments that describe the stream."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=52)
    parser.add_argument("--rate", type=float, default=15.0)
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    return parser


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--engines", nargs="+", default=["torch", "onnx", "int8"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = {int8: untrained(Path(folder) / str(int8), given.classes, int8=int8) for int8 in (False, True)}
        print("| engine | " + " | ".join(PARTS) + " | rest | all | products |")
        print("|---|" + "---|" * (len(PARTS) + 3))
        for name in given.engines:
            model = models[name == "int8"]
            engine = Watched(load_engine(model, engine="torch" if name == "torch" else "onnx"))
            measure(model, engine, 3.0, given.rate, beam=given.beam)  # type: ignore[arg-type]  # warms up
            engine.spent.clear()
            speed = measure(model, engine, given.seconds, given.rate, beam=given.beam)  # type: ignore[arg-type]
            parts = [engine.spent[part] for part in PARTS]
            times = [*parts, speed.computing - sum(parts), speed.computing, speed.bound]
            print(f"| {name} | " + " | ".join(f"{1e3 * each / given.seconds:.0f}" for each in times) + " |", flush=True)


if __name__ == "__main__":
    main()
