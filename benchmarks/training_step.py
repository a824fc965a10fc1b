"""A training step compared with its matrix products and with ESPnet's: the paper's sizes, random weights and features.

    python benchmarks/training_step.py [--classes 52 5000] [--rounds 5] [--memory keep default] [--folder runs/peers]

6 encoder and 12 decoder layers (256, 4 heads, 2048), eight utterances of 10 s with 40 tokens, the joint loss of CTC and
decoder, forward and backward; the step of Adam is measured separately. Steps and products alternate, on one thread;
figures are CPU seconds, the median of the rounds. "keep": the C library keeps freed memory, as in `headsync train`;
"default": it returns it to the system, which clears every page before it is allocated again.

ESPnet's streaming Transformer runs in the environment that `benchmarks/peers/espnet.py` creates; without it, its row is
left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from headsync.config import Config
from headsync.nn.model import Model
from headsync.training.allocator import keep_memory
from headsync.training.batches import Batch, collate
from headsync.training.losses import joint_loss, loss_terms
from products import Times, measure

ROWS, FRAMES, TOKENS = 8, 1000, 40
PEER = Path(__file__).parent / "peers" / "espnet_train.py"


def random_batch(classes: int) -> Batch:
    rng = np.random.default_rng(1)
    features = [rng.normal(size=(FRAMES, 80)).astype(np.float32) for _ in range(ROWS)]
    return collate(features, [rng.integers(1, classes - 1, TOKENS).tolist() for _ in range(ROWS)], classes - 1)


def ours(classes: int, rounds: int) -> Times:
    """The network of the paper with the default settings, as training calls it."""
    torch.manual_seed(0)
    config = Config()
    model = Model(config, config.columns, classes).train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = random_batch(classes)

    def gradient() -> None:
        adam.zero_grad()
        output = model(batch.features_BTF, batch.lengths_B, batch.tokens_BL)
        joint_loss(output, batch, loss_terms(config.training)).joint.backward()

    return measure(gradient, adam.step, rounds)


def espnet(python: Path, classes: int, rounds: int) -> Times:
    given = ["--classes", classes, "--rounds", rounds, "--rows", ROWS, "--frames", FRAMES, "--tokens", TOKENS]
    done = subprocess.run([python, PEER, *map(str, given)], check=True, capture_output=True, text=True)
    return Times(*json.loads(done.stdout.splitlines()[-1]))


def alone(classes: int, rounds: int, memory: str) -> Times:
    """Ours in a separate process, since the setting of the C library cannot be undone."""
    command = [sys.executable, __file__, "--classes", classes, "--rounds", rounds, "--memory", memory, "--one"]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return Times(*json.loads(done.stdout.splitlines()[-1]))


def row(name: str, classes: int, times: Times) -> str:
    ratio = times.gradient / times.products
    return (
        f"| {name} | {classes} | {times.gradient:.2f} s | {times.adam:.2f} s | {times.products:.2f} s | {ratio:.2f} "
        f"| {(times.gradient + times.adam) / times.products:.2f} | {times.operations / times.products / 1e9:.0f} "
        f"| {times.peak_mb:.0f} MB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[52, 5000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", nargs="+", choices=["keep", "default"], default=["keep", "default"])
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.one:
        if given.memory == ["keep"]:
            keep_memory()
        print(json.dumps(ours(given.classes[0], given.rounds)))
        return
    print("| network | classes | forward, backward | Adam | products | ratio | with Adam | GFLOP a second | memory |")
    print("|---|---|---|---|---|---|---|---|---|")
    python = given.folder.resolve() / "espnet" / "bin" / "python"
    for classes in given.classes:
        for memory in given.memory:
            print(row(f"headsync, {memory}", classes, alone(classes, given.rounds, memory)), flush=True)
        if python.exists():
            print(row("ESPnet", classes, espnet(python, classes, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
