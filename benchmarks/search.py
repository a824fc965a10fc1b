"""The cost of the search without the network, which is replaced by a lookup table.

    python benchmarks/search.py [--beam 1 10 60] [--classes 50 5000] [--frames 100 400 1600]

There is one token in every four frames, blocks have 16 frames, and the scores of CTC and decoder are as peaked as those
of trained models. A label step extends each hypothesis of the beam by one token; at the paper's size the network takes
14 to 26 ms for it with ten hypotheses. Times are the minimum of several runs, in CPU time on one thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time

import numpy as np

from headsync.config import DecodingConfig
from headsync.decoding.beam import Search
from headsync.decoding.hypothesis import SpeechFrames
from headsync.decoding.lookahead import lookahead
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import Decoded, IntArray, Memory, State, Window

FRAMES_PER_TOKEN, BLOCK = 4, 16


class Table:
    """An engine that looks up the spoken token, and gives some probability to all others."""

    def __init__(self, script: IntArray, classes: int) -> None:
        rng = np.random.default_rng(1)
        self.script, self.noise = script, rng.normal(size=(100, classes)).astype(np.float32)
        self.seconds, self.steps = 0.0, 0

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        return (np.zeros(batch, np.int64),)

    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        started = time.process_time()
        (written_B,) = state
        log_p_BV = self.noise[(7 * written_B + tokens_B) % 100] - 9.0
        inside = written_B < len(self.script)
        said_B = np.where(inside, self.script[np.minimum(written_B, len(self.script) - 1)], log_p_BV.shape[1] - 1)
        log_p_BV[np.arange(len(said_B)), said_B] = -0.2
        end_B = np.minimum(FRAMES_PER_TOKEN * written_B + 3, np.minimum(window.limit_B, window.frames_B))
        ready_B, no_weights = np.full(len(said_B), True), np.zeros((0, 0), np.float32)
        decoded = Decoded(log_p_BV, end_B[:, None, None], ready_B, no_weights, (written_B + 1,))
        self.steps += 1
        self.seconds += time.process_time() - started
        return decoded


def said(frames: int, classes: int) -> tuple[IntArray, np.ndarray]:
    """Tokens, and CTC scores with a spike for each."""
    rng = np.random.default_rng(2)
    script = rng.integers(1, classes - 1, frames // FRAMES_PER_TOKEN)
    logits_TV = rng.normal(size=(frames, classes))
    logits_TV[:, 0] += 10 + np.log(classes)
    logits_TV[1::FRAMES_PER_TOKEN][np.arange(len(script)), script] += 14 + np.log(classes)
    log_ctc_TV = logits_TV - np.logaddexp.reduce(logits_TV, axis=1, keepdims=True)
    return script, log_ctc_TV.astype(np.float32)


def run(beam: int, classes: int, frames: int) -> tuple[float, int]:
    """Seconds for one utterance without its engine, and its number of label steps."""
    script, log_ctc_TV = said(frames, classes)
    engine = Table(script, classes)
    config = DecodingConfig(beam=beam)
    searching = Search(engine, lookahead, config, classes - 1)  # type: ignore[arg-type]  # no encoder is needed
    memory = Memory(*np.zeros((2, 1, 1, 1, frames, 1), np.float32))
    spikes = CtcSpikes(tuple(range(1, frames, FRAMES_PER_TOKEN)), tuple(script.tolist()))
    speech, now, total = SpeechFrames(memory, log_ctc_TV, spikes), searching.start(), 0.0
    for end in range(BLOCK, frames + BLOCK, BLOCK):
        started = time.process_time()
        now = searching.advance(now, speech.up_to(min(end, frames)), final=end >= frames)
        total += time.process_time() - started
    assert now.best.tokens == tuple(script.tolist())
    return total - engine.seconds, engine.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 10, 60])
    parser.add_argument("--classes", type=int, nargs="+", default=[50, 5000])
    parser.add_argument("--frames", type=int, nargs="+", default=[100, 400, 1600])
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print("| beam | classes | frames | label steps | ms per label step | tokens per second |")
    print("|---|---|---|---|---|---|")
    for classes in given.classes:
        for beam in given.beam:
            for frames in given.frames:
                runs = [run(beam, classes, frames) for _ in range(given.runs)]
                seconds, steps = min(runs)
                each, rate = 1e3 * seconds / steps, frames // FRAMES_PER_TOKEN / seconds
                print(f"| {beam} | {classes} | {frames} | {steps} | {each:.2f} | {rate:.0f} |", flush=True)


if __name__ == "__main__":
    main()
