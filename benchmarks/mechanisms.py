"""The cost of each mechanism in a training step, relative to softmax: forward and backward of one cross-attention.

    python benchmarks/mechanisms.py [--rows 8] [--rounds 12]

The sizes are those of an utterance of 16 s with 100 tokens in the paper's network (T = 400, L = 100, H = 4, width 256),
on one thread. In each round every mechanism takes one step, and the ratio is that of the round; the table gives the
medians. Times are CPU times, so that a busy machine has little effect.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from headsync.attention import MECHANISMS, build_mechanism
from headsync.attention.cross_attention import CrossAttention
from headsync.config import DecoderConfig

WIDTH, HEADS, FRAMES, STEPS = 256, 4, 400, 100


def build(name: str) -> CrossAttention:
    torch.manual_seed(1)
    mechanism = build_mechanism(DecoderConfig(attention=name), HEADS, WIDTH // HEADS)
    return CrossAttention(WIDTH, HEADS, mechanism, dropout=0.1).train()


def seconds(cross: CrossAttention, x: torch.Tensor, frames: torch.Tensor) -> float:
    """One training step, from states and frames to the gradients of all weights and of both."""
    start = time.process_time()
    limit = torch.full((len(x), 1), FRAMES)
    context, _ = cross.whole(x, *cross.project(frames), limit)
    context.square().sum().backward()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(given.rows, STEPS, WIDTH, requires_grad=True)
    frames = torch.randn(given.rows, FRAMES, WIDTH, requires_grad=True)
    stack = {name: build(name) for name in MECHANISMS}
    rounds = [{name: seconds(cross, x, frames) for name, cross in stack.items()} for _ in range(given.rounds + 1)]
    print("| mechanism | milliseconds | times softmax |")
    print("|---|---|---|")
    for name in MECHANISMS:
        times = [took[name] for took in rounds[1:]]  # the first round warms up
        ratios = [took[name] / took["softmax"] for took in rounds[1:]]
        print(f"| {name} | {1e3 * statistics.median(times):.0f} | {statistics.median(ratios):.2f} |")


if __name__ == "__main__":
    main()
