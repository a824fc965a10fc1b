"""Distil Moonshine tiny's full-context states into its streaming form.

    python recipes/english/adapt.py table                                   # the untrained encoder
    python recipes/english/adapt.py train                                   # continues from its last checkpoint
    python recipes/english/adapt.py table --checkpoint runs/english/adapt/last
    python recipes/english/adapt.py table --corpus commonvoice --split dev

Teacher: the float encoder with its own GroupNorm on rows of up to 29 s, one or several utterances, clean. Student: the
same weights to begin with, in blocks, on the same rows with changed level, noise and telephone band (`augment.py`). The
sizes of the blocks and their phase are drawn for each row, so that one model serves several delays. Loss = fraction of
the teacher's variance left unexplained + Kullback-Leibler divergence of the frozen decoder's next token on the
teacher's and on the student's states, given the tokens that the teacher reads (`label.py tiny`; rows with an utterance
that was not read give the first part only).

The rate rises, stays constant, and falls to zero over the last third of the updates. The moving average of the weights
(EMA) is evaluated and saved. A checkpoint is model.safetensors (EMA), training.safetensors (weights and moments) and
state.json. The data of an update depends on its number only, so a run can be stopped and continued.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from augment import at_peak, augmented, finished, noise
from label import readings
from moonshine import BOS, RATE, Decoder, Encoder, Shape, Tokenizer, frames_of, mixed_precision
from optimisation import Run, Schedule, updates_of
from safetensors.torch import load_file
from score import word_error_rate
from speech import (
    LABELS,
    RUNS,
    Utterance,
    batches,
    fixed_subset,
    has_manifest,
    levelled,
    padded,
    read_manifest,
    samples_of,
)
from torch import Tensor

FOLDER = RUNS / "adapt"
MIXTURE = {"librispeech": 0.4, "commonvoice": 0.3, "harpervalley": 0.08, "commonvoice-v1": 0.05, "unlabelled": 0.17}
SHAPES = (  # left, centre, right in seconds, and how often
    ((10.32, 0.384, 0.384), 0.50),
    ((10.32, 0.24, 0.48), 0.10),
    ((10.32, 0.48, 0.24), 0.12),
    ((10.32, 0.24, 0.24), 0.06),
    ((10.32, 0.672, 0.672), 0.14),
    ((5.16, 0.384, 0.384), 0.08),
)
LONGEST = 30  # seconds of the teacher's longest input
TABLE = (
    (10.32, 0.24, 0.24),
    (10.32, 0.48, 0.24),
    (10.32, 0.24, 0.48),
    (10.32, 0.384, 0.384),
    (10.32, 0.48, 0.48),
    (10.32, 0.672, 0.672),
    (10.32, 0.96, 0.96),
    (5.16, 0.384, 0.384),
    (2.59, 0.384, 0.384),
)


@dataclass(frozen=True)
class Config:
    """Settings of a run."""

    seconds: float = 48.0  # of speech in one update
    row_seconds: tuple[float, float] = (3.0, 29.0)
    divergence: float = 1.0  # weight of the decoder's divergence
    seed: int = 1
    save_minutes: float = 4.0
    evaluate_updates: int = 100


class Row(NamedTuple):
    """The student's input, the teacher's input, and the tokens that the teacher reads in it (if known)."""

    noisy: np.ndarray
    clean: np.ndarray
    tokens: list[int] | None


# --------------------------------------------------------------------------------------------------------------- data


class Corpora:
    """Training utterances of all corpora with what tiny reads in them."""

    def __init__(self) -> None:
        self.utterances = {c: read_manifest(c, "train") for c in MIXTURE if has_manifest(c)}
        self.tokens: dict[str, list[int]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Load readings that were written since."""
        for corpus in self.utterances:
            found = readings(LABELS / f"{corpus}-tiny.jsonl")
            self.tokens |= {key: row["tokens"] for key, row in found.items() if row["tokens"]}

    def draw(self, read: bool, rng: np.random.Generator) -> Utterance:
        """One utterance; with `read`, one that has a reading, if there is any."""
        names = list(self.utterances)
        weights = np.array([MIXTURE[name] for name in names])
        for _ in range(50):
            corpus = self.utterances[names[rng.choice(len(names), p=weights / weights.sum())]]
            utterance = corpus[rng.integers(len(corpus))]
            if utterance.seconds < LONGEST and (utterance.id in self.tokens or not read):
                break
        return utterance


def build_row(corpora: Corpora, config: Config, rng: np.random.Generator) -> Row:
    """One utterance, or several with pauses."""
    limit = int(rng.uniform(*config.row_seconds) * RATE) if rng.random() < 0.65 else 0
    lead = int(rng.uniform(0, 1.5) * RATE) if rng.random() < 0.3 else 0
    noisy, clean = [np.zeros(lead, np.float32)], [np.zeros(lead, np.float32)]
    tokens: list[list[int] | None] = []
    length, read = lead, rng.random() < 0.7
    while True:
        utterance = corpora.draw(read, rng)
        samples = levelled(samples_of(utterance)) * np.float32(10 ** (rng.normal(0, 2.5) / 20))
        pause = np.zeros(int(rng.exponential(0.5) * RATE), np.float32)
        if tokens and length + len(samples) > limit:
            break
        clean += [samples, pause]
        noisy += [augmented(samples, rng), pause]
        tokens.append(corpora.tokens.get(utterance.id))
        length += len(samples) + len(pause)
        if length >= limit:
            break
    row = np.concatenate(noisy)
    background = noise(len(row), rng) * np.float32(10 ** (rng.uniform(-75, -45) / 20))
    texts = [t for t in tokens if t is not None]
    whole = [token for text in texts for token in text] if len(texts) == len(tokens) else None
    quiet = np.concatenate(clean) + background * 0.1
    return Row(finished(row + background, rng), levelled(quiet)[: LONGEST * RATE], whole)


# --------------------------------------------------------------------------------------------------------------- loss


class Losses(NamedTuple):
    """Sums over a row: squared error, the teacher's variance, divergence, tokens."""

    error: Tensor
    variance: Tensor
    divergence: Tensor
    tokens: int


def row_losses(student: Encoder, teacher: Encoder, decoder: Decoder, row: Row, shape: Shape, phase: int) -> Losses:
    """Compare the student's states of a row with the teacher's."""
    front, _ = student.front(torch.from_numpy(row.noisy[: len(row.clean)])[None])
    x = F.pad(front, (0, 0, phase, 0))
    with mixed_precision():
        states = student.blocks(x, shape, torch.arange(x.shape[1])[None] >= phase)[:, phase:].float()
    with torch.no_grad(), mixed_precision():
        wanted = teacher.whole(torch.from_numpy(row.clean)[None]).float()
    error = (states - wanted).square().sum()
    variance = (wanted - wanted.mean(1)).square().sum()
    return Losses(error, variance, *divergence(decoder, wanted, states, row.tokens))


def divergence(decoder: Decoder, wanted: Tensor, states: Tensor, tokens: list[int] | None) -> tuple[Tensor, int]:
    """Sum of the Kullback-Leibler divergence of the next token over all tokens, and their number."""
    if not tokens:
        return torch.zeros(()), 0
    inputs, seen = torch.tensor([[BOS, *tokens]]), torch.ones(wanted.shape[:2], dtype=torch.bool)
    with torch.no_grad(), mixed_precision():
        target = decoder.logits(decoder.hidden(inputs, wanted, seen)).float().log_softmax(-1)
    with mixed_precision():
        logits = decoder.logits(decoder.hidden(inputs, states, seen))
    found = logits.float().log_softmax(-1)
    return F.kl_div(found, target, reduction="sum", log_target=True), inputs.shape[1]


# ----------------------------------------------------------------------------------------------------------- training


def train(config: Config, schedule: Schedule, folder: Path) -> None:
    """Make all updates of a run."""
    run, corpora = Run(Encoder.pretrained(), schedule, folder), Corpora()
    teacher, decoder = (
        Encoder.pretrained().eval().requires_grad_(False),
        Decoder.pretrained().eval().requires_grad_(False),
    )
    sizes, chances = [Shape.of(*s) for s, _ in SHAPES], np.array([p for _, p in SHAPES])
    saved = time.monotonic()
    while not run.is_over:
        rng, sums, processed = np.random.default_rng([config.seed, run.updates]), np.zeros(4), 0.0
        start = time.monotonic()
        while processed < config.seconds:
            row = build_row(corpora, config, rng)
            shape = sizes[rng.choice(len(sizes), p=chances / chances.sum())]
            phase = int(rng.integers(shape.centre)) if rng.random() < 0.7 else 0
            seconds = len(row.clean) / RATE
            loss = row_losses(run.model, teacher, decoder, row, shape, phase)
            total = loss.error / loss.variance + config.divergence * loss.divergence / max(1, loss.tokens)
            (total * (seconds / config.seconds)).backward()
            sums += [
                float(value) for value in (loss.error.detach(), loss.variance, loss.divergence.detach(), loss.tokens)
            ]
            processed += seconds
        run.update()
        figures = f"unexplained {sums[0] / sums[1]:.4f} divergence {sums[2] / max(1, sums[3]):.4f}"
        print(f"{run.updates} {figures} {time.monotonic() - start:.1f} s", flush=True)
        if time.monotonic() - saved > 60 * config.save_minutes:
            run.save()
            corpora.refresh()
            saved = time.monotonic()
        if run.updates % config.evaluate_updates == 0:
            run.save()
            evaluate(run.average, teacher, decoder, folder / "evaluations.jsonl", run.updates)
    run.save()


def evaluate(encoder: Encoder, teacher: Encoder, decoder: Decoder, log: Path, updates: int) -> None:
    """A few fixed utterances of two development sets at the first size."""
    for corpus in ("librispeech", "commonvoice"):
        test = prepared(fixed_subset(read_manifest(corpus, "dev"), 60), teacher)
        for size in (SHAPES[0][0],):
            shape = Shape.of(*size)
            unexplained, rate = measured(test, decoder, partial(streamed, encoder, shape=shape))
            line = {"updates": updates, "corpus": corpus, "shape": str(shape), "unexplained": unexplained, "wer": rate}
            print("evaluation", json.dumps(line), flush=True)
            with log.open("a") as out:
                out.write(json.dumps(line) + "\n")


# ---------------------------------------------------------------------------------------------------------- measuring


class Prepared(NamedTuple):
    """A batch of test utterances: samples as recorded, lengths, the teacher's states, texts."""

    samples: Tensor
    lengths: Tensor
    states: Tensor
    texts: list[str]


@torch.no_grad()
def prepared(utterances: Sequence[Utterance], teacher: Encoder, peak: float | None = None) -> list[Prepared]:
    """Batches of test utterances with the teacher's states; `peak`: peak level of the student's input in dBFS."""
    found = []
    for batch in batches(utterances, 180.0, 24):
        rows = [samples_of(u) for u in batch]
        samples, lengths = padded(rows if peak is None else [at_peak(row, peak) for row in rows])
        states = teacher.whole(padded([levelled(r) for r in rows])[0], lengths)
        found.append(Prepared(samples, lengths, states, [u.text or "" for u in batch]))
    return found


def streamed(encoder: Encoder, samples: Tensor, lengths: Tensor, shape: Shape) -> Tensor:
    """States of the streaming form; frames after the end of a row are not seen."""
    front, _ = encoder.front(samples)
    frames = torch.tensor([frames_of(int(n)) for n in lengths])
    return encoder.blocks(front, shape, torch.arange(front.shape[1]) < frames[:, None])


def everything(encoder: Encoder, samples: Tensor, lengths: Tensor) -> Tensor:
    """States with full context and the running level: one block."""
    return streamed(encoder, samples, lengths, Shape(0, frames_of(samples.shape[1]), 0))


@torch.no_grad()
def measured(test: Sequence[Prepared], decoder: Decoder, states_of: partial[Tensor]) -> tuple[float, float]:
    """Fraction of the teacher's variance left unexplained, and WER with Moonshine's own decoder, in per cent."""
    tokenizer, error, variance = Tokenizer(), 0.0, 0.0
    references, hypotheses = [], []
    for batch in test:
        states = states_of(batch.samples, batch.lengths)
        frames = torch.tensor([frames_of(int(n)) for n in batch.lengths])
        inside = torch.arange(states.shape[1]) < frames[:, None]
        wanted = batch.states[inside]
        error += float((states[inside] - wanted).square().sum())
        variance += float((wanted - wanted.mean(0)).square().sum())
        hypotheses += [tokenizer.decode(t) for t in decoder.greedy(states, frames)]
        references += batch.texts
    return error / variance, word_error_rate(references, hypotheses)


@torch.no_grad()
def step_cost(encoder: Encoder, shape: Shape, samples: Tensor) -> float:
    """CPU seconds per second of audio, block by block on one thread (best of two)."""
    best = np.inf
    for _ in range(2):
        start = time.process_time()
        front, _ = encoder.front(samples[None])
        caches = None
        for first in range(0, front.shape[1], shape.centre):
            _, caches = encoder.step(front[:, first : first + shape.centre + shape.right], caches, shape)
        best = min(best, (time.process_time() - start) / (len(samples) / RATE))
    return best


def table(arguments: argparse.Namespace) -> None:
    """Print and store a row per size."""
    teacher, decoder = Encoder.pretrained().eval(), Decoder.pretrained().eval()
    encoder, name = Encoder.pretrained().eval(), "untrained"
    if arguments.checkpoint:
        encoder.load_state_dict(load_file(arguments.checkpoint / "model.safetensors"))
        name = f"{updates_of(arguments.checkpoint)} updates"
    chosen = fixed_subset(read_manifest(arguments.corpus, arguments.split), arguments.utterances)
    test = prepared(chosen, teacher, arguments.peak)
    sound = torch.from_numpy(np.concatenate([samples_of(u) for u in chosen[:4]]))
    level = "as recorded" if arguments.peak is None else f"peak {arguments.peak} dBFS"
    print(f"{name}, {arguments.corpus} {arguments.split}, {len(chosen)} utterances, {level}")
    print("| left / centre / right | unexplained | WER | delay | CPU per second |\n|---|---|---|---|---|", flush=True)
    rows: list[tuple[str, partial[Tensor], Shape | None]] = [
        ("everything, own GroupNorm", partial(lambda s, n: teacher.whole(s, n)), None),
        ("everything, running level", partial(everything, encoder), None),
    ]
    rows = [] if arguments.sizes else rows
    for size in arguments.sizes or TABLE:
        shape = Shape.of(*size)
        rows.append((str(shape), partial(streamed, encoder, shape=shape), shape))
    for label, states_of, size_of in rows:
        unexplained, rate = measured(test, decoder, states_of)
        cost = f"{size_of.delay:.2f} s | {step_cost(encoder, size_of, sound):.3f}" if size_of else "|"
        print(f"| {label} | {unexplained:.3f} | {rate:.2f} % | {cost} |", flush=True)


def _size(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split("/"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("--updates", type=int, default=600)
    training.add_argument("--folder", type=Path, default=FOLDER / "last")
    training.add_argument("--rate", type=float, default=2e-4)
    tables = commands.add_parser("table")
    tables.add_argument("--checkpoint", type=Path)
    tables.add_argument("--corpus", default="librispeech")
    tables.add_argument("--split", default="dev", choices=["dev"])
    tables.add_argument("--utterances", type=int, default=300)
    tables.add_argument("--sizes", type=_size, nargs="*", help="only these: left/centre/right in seconds")
    tables.add_argument("--peak", type=float, help="peak of each utterance in dBFS; above 0 it is clipped")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "table":
        table(arguments)
    else:
        train(Config(), Schedule(arguments.rate, 40, arguments.updates, 0.98), arguments.folder)


if __name__ == "__main__":
    main()
