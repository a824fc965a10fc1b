"""The cost of training: an estimate for GPUs, and measurements on this computer.

    python benchmarks/training.py estimate                    the table of docs/how-to/train-at-scale.md
    python benchmarks/training.py step                        one full-size LibriSpeech update of four utterances
    python benchmarks/training.py overhead                    an update against a plain PyTorch loop of the same network
    python benchmarks/training.py feeding MANIFEST            how long two training processes wait for their data

The estimate counts the operations of each recipe's network without computing them (on PyTorch's "meta" device), and the
memory of all tensors that the gradient needs; hours assume a tenth of a GPU's nominal speed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from headsync.config import Config
from headsync.corpora.manifest import read_manifest
from headsync.frontend.features import Features, Statistics
from headsync.frontend.frame_rate import NUM_MEL, NUM_PITCH
from headsync.nn.model import Model
from headsync.recipe import load_config
from headsync.text.vocabulary import Vocabulary, build_vocabulary
from headsync.training.asr_task import AsrTask, build_model
from headsync.training.batches import Batch, Batches, collate, load, statistics_of
from headsync.training.bucketing import Share, Split, plan
from headsync.training.distributed import Ranks
from headsync.training.losses import joint_loss, loss_terms
from headsync.training.optimisation import CLIP_NORM
from headsync.training.trainer import Trainer

RECIPES = Path(__file__).parent.parent / "recipes"
USED = 0.1  # expected share of a GPU's nominal speed, for networks of this width and such batches
GPUS = {"V100": 125e12, "RTX 4090": 165e12, "A100": 312e12, "H100": 989e12}  # half precision, dense, nominal


class Corpus(NamedTuple):
    """The size of an epoch, and its typical utterance."""

    utterances: int
    frames: int
    tokens: int
    classes: int


CORPORA = {
    "wsj": Corpus(37_416, 780, 101, 52),
    "aishell1": Corpus(3 * 120_098, 450, 14, 4_233),  # at three speeds
    "librispeech": Corpus(281_241, 1_230, 45, 5_002),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("estimate")
    kinds.add_parser("step")
    kinds.add_parser("overhead").add_argument("--rounds", type=int, default=12)
    feeding = kinds.add_parser("feeding")
    feeding.add_argument("manifest", type=Path)
    feeding.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.kind == "estimate":
        estimate()
    elif given.kind == "step":
        measure_step()
    elif given.kind == "overhead":
        measure_overhead(given.rounds)
    else:
        measure_feeding(given.manifest, given.batches)


# estimated cost on a GPU


def estimate() -> None:
    """A row for each recipe: parameters, operations, memory of a part, hours of the whole training."""
    print(f"| recipe | parameters | operations of an epoch | memory | {' | '.join(f'{gpu}, h' for gpu in GPUS)} |")
    print("|" + "---|" * (4 + len(GPUS)))
    for path in sorted(RECIPES.glob("*/*.toml")):
        task = path.parent.name
        if task in CORPORA:
            print(row(path, CORPORA[task]))


def row(path: Path, corpus: Corpus) -> str:
    config = load_config(path)
    with torch.device("meta"):
        model = Model(config, config.columns, corpus.classes)
    one = operations(model, corpus, rows=4) / 4
    rows = max(1, config.training.batch_frames // config.training.accumulate // corpus.frames)
    parameters = sum(p.numel() for p in model.parameters())
    half = 16 * parameters + remembered(model, corpus, rows) / 2  # Adam in float32, activations in half precision
    hours = [one * corpus.utterances * config.training.epochs / (USED * speed) / 3600 for speed in GPUS.values()]
    epoch = f"{one * corpus.utterances / 1e15:.0f} PFLOP"
    cells = [f"`{path.name}`", f"{parameters / 1e6:.1f} M", epoch, f"{half / 2**30:.0f} GB"]
    return "| " + " | ".join([*cells, *(f"{h:.0f}" if h >= 10 else f"{h:.1f}" for h in hours)]) + " |"


def operations(model: Model, corpus: Corpus, rows: int) -> float:
    """Operations of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        _forward(model, corpus, rows).backward()
    return counter.get_total_flops()


def remembered(model: Model, corpus: Corpus, rows: int) -> int:
    """Bytes that a forward pass keeps for the backward pass, each tensor counted once."""
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _forward(model, corpus, rows)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    return sum(storage.nbytes() for number, storage in kept.items() if number not in own)


def _forward(model: Model, corpus: Corpus, rows: int) -> torch.Tensor:
    with torch.device("meta"):
        features = torch.zeros(rows, corpus.frames, NUM_MEL + NUM_PITCH)
        lengths = torch.full((rows,), corpus.frames)
        tokens = torch.zeros(rows, corpus.tokens + 1, dtype=torch.long)
    output = model.train()(features, lengths, tokens)
    return output.ctc_BTV.log_softmax(-1).sum() + output.decoder_BLV.log_softmax(-1).sum()


# measured cost on this computer


def random_batch(config: Config, vocabulary: Vocabulary, rows: int, frames: int, tokens: int) -> Batch:
    rng = np.random.default_rng(1)
    features = [rng.normal(size=(frames, config.columns)).astype(np.float32) for _ in range(rows)]
    texts = [rng.integers(1, len(vocabulary.tokens) + 1, tokens).tolist() for _ in range(rows)]
    return collate(features, texts, vocabulary.end)


def make_run(config: Config, vocabulary: Vocabulary) -> Trainer[Any, Any]:
    model = build_model(config, vocabulary)
    adam = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    nothing = np.zeros(config.columns, np.float32)
    config = replace(config, training=replace(config.training, folder=tempfile.mkdtemp()))
    task = AsrTask(config, vocabulary, model, adam, [], [], Statistics(nothing, nothing + 1))
    return Trainer(task, Ranks(), print)


def measure_step() -> None:
    """The full-size LibriSpeech network, four utterances of 12.3 s."""
    config = load_config(RECIPES / "librispeech" / "hs-dacs.toml")
    corpus = CORPORA["librispeech"]
    vocabulary = Vocabulary("characters", tuple(chr(0x4E00 + n) for n in range(corpus.classes - 2)))
    run = make_run(config, vocabulary)
    run.task.model.train()
    share = Share([random_batch(config, vocabulary, 4, corpus.frames, corpus.tokens)], [1.0], 0)
    before, taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(3):
        begin = time.perf_counter(), time.process_time()
        run.update(share)
        taken.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = (min(times) for times in zip(*taken, strict=True))
    parameters = sum(p.numel() for p in run.task.model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, 4 utterances of {corpus.frames / 100} s, one thread, "
          f"{wall:.1f} s ({processor:.1f} s of processor time), "
          f"peak {peak / 2**20:.2f} GB, {(peak - before) / 2**20:.2f} GB of it for updates")  # fmt: skip


def measure_overhead(rounds: int) -> None:
    """Updates of the trainer and of a plain PyTorch loop, alternating."""
    config = load_config(RECIPES / "toy" / "toy.toml")
    vocabulary = Vocabulary("characters", tuple("abcdefghij"))
    run = make_run(config, vocabulary)
    plain = Model(config, config.columns, vocabulary.size).train()
    adam = torch.optim.Adam(plain.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    run.task.model.train()
    batch = random_batch(config, vocabulary, 8, 400, 20)
    ratios = []
    for _ in range(rounds):
        begin = time.process_time()
        run.update(Share([batch], [1.0], 0))
        middle = time.process_time()
        _plain_update(plain, adam, batch, config)
        ratios.append((middle - begin) / (time.process_time() - middle))
    print(f"an update takes {np.median(ratios):.3f} times as long as in a plain loop (median of {rounds}, "
          f"from {min(ratios):.3f} to {max(ratios):.3f})")  # fmt: skip


def _plain_update(model: Model, adam: torch.optim.Adam, batch: Batch, config: Config) -> None:
    output = model(batch.features_BTF, batch.lengths_B, batch.tokens_BL)
    loss = joint_loss(output, batch, loss_terms(config.training)).joint
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    adam.step()
    float(loss.detach())


def measure_feeding(manifest: Path, batches: int) -> None:
    """Two processes at once, each with one worker that prepares its batches; the recipe of WSJ, in batches of 40 s."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        shares = list(pool.map(waiting_share, [manifest] * 2, [batches] * 2, range(2)))
    print("share of the time that processes waited for data, but for the first batch: "
          + ", ".join(f"{share:.1%}" for share in shares))  # fmt: skip


def waiting_share(manifest: Path, batches: int, rank: int) -> float:
    torch.set_num_threads(1)
    config = load_config(RECIPES / "wsj" / "hs-dacs.toml", ["training.accumulate=1"])
    utterances = read_manifest(manifest)
    vocabulary = build_vocabulary(config.data, [u.text for u in utterances])
    run = make_run(config, vocabulary)
    features = Features.of(config.features)
    statistics = statistics_of(utterances[:5], features)
    rows = plan(utterances, 4_000, 1, 0)[:batches]
    source = Batches(utterances, vocabulary, statistics, rows, (config.training, 0), features)
    run.task.model.train()
    waited: list[float] = []
    begin = time.perf_counter()
    for share in timed(load(source, 0, 1, Split(rank, 2)), waited):
        if len(waited) == 1:
            begin = time.perf_counter()  # the first batch is not prepared ahead
        run.update(share)
    return sum(waited[1:]) / (time.perf_counter() - begin)


def timed(shares: Iterator[Share[Batch]], waited: list[float]) -> Iterator[Share[Batch]]:
    while True:
        with clock(waited):
            share = next(shares, None)
        if share is None:
            waited.pop()
            return
        yield share


@contextmanager
def clock(waited: list[float]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    waited.append(time.perf_counter() - begin)


if __name__ == "__main__":
    main()
