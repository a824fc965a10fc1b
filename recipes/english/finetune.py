"""Train encoder, CTC and online decoder together on recordings, from the checkpoints of `adapt.py` and `train.py`.

    python recipes/english/finetune.py                   # continues from runs/english/finetune-0
    python recipes/english/finetune.py --held-from 2     # another run, in runs/english/finetune-2
    python recipes/english/finetune.py --minutes 20      # stop after this time; the same command continues
    python recipes/english/finetune.py evaluate

CTC cannot become accurate on states that were made for attention, so the layers of the encoder learn too, but not its
convolutions, its two lowest layers and the embedding. The loss is CTC, the halting loss of `convert.py`, and
cross-entropy to the text and to the probabilities of Moonshine, which reads each utterance whole and without
augmentation, given the text. Limits of steps are as in `train.py`.

A row is a stream: one utterance, or several with pauses, or background without text, after augmentation
(`augment.py`). The encoder reads the whole row, in blocks of a size drawn for each row. Its states are then cut into
the utterances that an endpointer would find: with part of the silence around them, and sometimes two or three
utterances as one. So the decoder learns from states after other speech as well as from those at the start of a stream.
The data of an update depends on its number and the number of processes.

The lowest layers of the decoder read broadly. If they are held back until a token's spike, they delay it; if not, they
halt far too early. `export.py` averages the weights before this training and after one run of each kind.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from augment import augmented, finished, noise
from background import background
from cache import development, labelled
from convert import HALTING_WEIGHT, Batch, halting_loss, padded_batch
from moonshine import FIELD, HOP, LAYERS, RATE, Decoder, Encoder, Shape, frames_of, mixed_precision
from optimisation import Run, Schedule, processes
from safetensors.torch import load_file, save_file
from score import word_error_rate
from speech import RUNS, Utterance, levelled, padded, samples_of
from torch import Tensor, nn
from train import (
    LOOKAHEADS,
    MECHANISM,
    Recogniser,
    Teacher,
    cross_entropy,
    ctc_loss,
    forced,
    lengths,
    token_limits,
)
from vocabulary import Vocabulary

FOLDER = "finetune-{}"  # by the lowest layer that is held back
START = (RUNS / "adapt/last", RUNS / "train/last")
MIXTURE = {
    "librispeech": 0.30,
    "commonvoice": 0.40,
    "commonvoice-v1": 0.08,
    "harpervalley": 0.10,
    "speechocean": 0.07,
    "digits": 0.05,
}
SHAPES = (  # left, centre, right in seconds, and how often
    ((10.32, 0.384, 0.384), 0.60),
    ((10.32, 0.24, 0.24), 0.22),
    ((10.32, 0.672, 0.672), 0.10),
    ((5.16, 0.384, 0.384), 0.08),
)
SIZE = SHAPES[0][0]
SECONDS = 96.0  # of speech in one update, over all processes
UPDATES, WARMUP, RATE_MOST, EMA = 260, 50, 2e-4, 0.99
FASTER = {"recogniser.ctc.": 5.0}
FASTER |= {f"recogniser.decoder.layers.{n}.energy_bias": 50.0 for n in range(LAYERS)}  # they place the halts
FROZEN = 2  # lowest layers of the encoder; training them as well takes a fifth more time
CTC_WEIGHT = 0.6
LONGEST_STREAM, LONGEST_UTTERANCE = 26.0, 18.0  # seconds
LEAD, TRAIL, JOINED_PAUSE = 1.0, 0.8, 1.0  # seconds of silence kept around an utterance, and inside one
BACKGROUND = 0.05  # share of background among the utterances
SEED, SAVE_MINUTES = 5, 4.0


class Span(NamedTuple):
    """Part of a stream in samples, with its text and its speech as recorded."""

    first: int
    end: int
    text: str
    clean: np.ndarray


class Model(nn.Module):
    """All networks; the convolutions, the lowest layers of the encoder and the embedding are not trained."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.encoder, self.recogniser = Encoder(), Recogniser(MECHANISM, tokens)
        self.recogniser.decoder.embed_tokens.requires_grad_(False)
        encoder = self.encoder
        for part in (encoder.conv1, encoder.groupnorm, encoder.conv2, encoder.conv3, *encoder.layers[:FROZEN]):
            part.requires_grad_(False)

    def states(self, samples: np.ndarray, shape: Shape, phase: int) -> Tensor:
        """States of a stream whose first block is shorter by `phase` frames."""
        with torch.no_grad(), mixed_precision():
            front, _ = self.encoder.front(torch.from_numpy(np.pad(samples, (0, FIELD)))[None])
        x = F.pad(front.float(), (0, 0, phase, 0))
        with mixed_precision():
            states = self.encoder.blocks(x, shape, torch.arange(x.shape[1])[None] >= phase)
        return states[0, phase:].float()


# --------------------------------------------------------------------------------------------------------------- data


class Corpora:
    """Training utterances with text, by corpus."""

    def __init__(self, mixture: Mapping[str, float] = MIXTURE, others: Sequence[tuple[str, Utterance]] = ()) -> None:
        """`mixture`: how often an utterance of each corpus is drawn. `others`: speech that `label.py` does not read."""
        self.utterances: dict[str, list[Utterance]] = {}
        for corpus, utterance in (*labelled(), *others):
            if corpus in mixture and 0.6 <= utterance.seconds <= LONGEST_STREAM:
                self.utterances.setdefault(corpus, []).append(utterance)
        self.names = list(self.utterances)
        weights = np.array([mixture[name] for name in self.names])
        self.weights = weights / weights.sum()
        print({name: len(found) for name, found in self.utterances.items()}, flush=True)

    def draw(self, rng: np.random.Generator) -> Utterance:
        corpus = self.utterances[self.names[rng.choice(len(self.names), p=self.weights)]]
        return corpus[rng.integers(len(corpus))]


def stream(corpora: Corpora, rng: np.random.Generator) -> tuple[np.ndarray, list[Span]]:
    """A row of samples, and its utterances."""
    most = int(rng.uniform(6, LONGEST_STREAM) * RATE) if rng.random() < 0.6 else 0
    lead = int(rng.uniform(0, 1.2) * RATE) if rng.random() < 0.5 else 0
    parts, spans, place = [np.zeros(lead, np.float32)], list[Span](), lead
    while True:
        if rng.random() < BACKGROUND:
            voices = [corpora.draw(rng) for _ in range(8)]
            samples, text, clean = background(voices, rng), "", np.zeros(RATE, np.float32)
        else:
            utterance = corpora.draw(rng)
            clean, text = levelled(samples_of(utterance)), utterance.text or ""
            samples = augmented(clean * np.float32(10 ** (rng.normal(0, 2.5) / 20)), rng)
        if spans and place + len(samples) > most:
            break
        pause = int(rng.exponential(0.6) * RATE)
        parts += [samples, np.zeros(pause, np.float32)]
        spans.append(Span(place, place + len(samples), text, clean))
        place += len(samples) + pause
        if place >= most:
            break
    row = np.concatenate(parts)
    background_noise = noise(len(row), rng) * np.float32(10 ** (rng.uniform(-80, -50) / 20))
    return finished(row + background_noise, rng), joined(spans, len(row), rng)


def joined(spans: Sequence[Span], end: int, rng: np.random.Generator) -> list[Span]:
    """Utterances as an endpointer cuts them: some neighbours as one, with part of the silence around them."""
    found = list[Span]()
    for span in spans:
        last = found[-1] if found else None
        if last is not None and may_be_one(last, span) and rng.random() < 0.4:
            clean = np.concatenate([last.clean, np.zeros(span.first - last.end, np.float32), span.clean])
            found[-1] = Span(last.first, span.end, f"{last.text} {span.text}", clean)
        else:
            found.append(span)
    wide, before = list[Span](), 0
    for span, after in zip(found, [*(s.first for s in found[1:]), end], strict=True):
        first = max(before, span.first - int(rng.uniform(0, LEAD) * RATE))
        before = span.end + int(min(after - span.end, rng.uniform(0, TRAIL) * RATE))
        wide.append(span._replace(first=first, end=before))
    return wide


def may_be_one(a: Span, b: Span) -> bool:
    """Whether two neighbours have texts, a short pause between them, and the length of one utterance."""
    short = b.first - a.end < JOINED_PAUSE * RATE and b.end - a.first < LONGEST_UTTERANCE * RATE
    return bool(short and a.text and b.text)


class Piece(NamedTuple):
    """States of an utterance, its tokens, and its speech as recorded."""

    states: Tensor
    tokens: list[int]
    clean: np.ndarray


def pieces(
    model: Model, corpora: Corpora, vocabulary: Vocabulary, seconds: float, rng: np.random.Generator
) -> list[Piece]:
    """Utterances of some streams."""
    found, processed = list[Piece](), 0.0
    sizes, chances = [Shape.of(*s) for s, _ in SHAPES], [p for _, p in SHAPES]
    while processed < seconds:
        samples, spans = stream(corpora, rng)
        shape = sizes[rng.choice(len(sizes), p=chances)]
        states = model.states(samples, shape, int(rng.integers(shape.centre)))
        for span in spans:
            piece = Piece(states[span.first // HOP : span.end // HOP], vocabulary.encode(span.text), span.clean)
            if len(piece.states) // 2 > 1.3 * len(piece.tokens) + 4:  # CTC needs room for every token
                found.append(piece)
        processed += len(samples) / RATE
    return found


def groups(found: Sequence[Piece], states: int = 2400) -> Iterator[list[Piece]]:
    """Utterances of similar length, at most `states` with padding."""
    group: list[Piece] = []
    for piece in sorted(found, key=lambda piece: len(piece.states)):
        if group and len(piece.states) * (len(group) + 1) > states:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def batch_of(group: Sequence[Piece]) -> Batch:
    return padded_batch([piece.states for piece in group], [piece.tokens for piece in group])


# --------------------------------------------------------------------------------------------------------------- loss


class Losses(NamedTuple):
    """Sums over some utterances, and the number of tokens: of CTC, and of the decoder (with the end)."""

    ctc: Tensor
    text: Tensor
    halting: Tensor
    tokens: int
    steps: int


class WholeTeacher(Teacher):
    """Moonshine as published: it reads whole utterances."""

    def __init__(self, encoder: Encoder, decoder: Decoder, rows: Sequence[int]) -> None:
        super().__init__(decoder, rows)
        self.encoder = encoder.eval()

    @torch.no_grad()
    def of(self, group: Sequence[Piece], batch: Batch) -> Tensor:
        """Probabilities of the next token, given the text."""
        samples, lengths = padded([piece.clean for piece in group])
        with mixed_precision():
            states = self.encoder.whole(samples, lengths).float()
        seen = torch.arange(states.shape[1]) < torch.tensor([frames_of(int(n)) for n in lengths])[:, None]
        return self.probabilities(self.layers(batch._replace(states=states, seen=seen))[-1])


def batch_losses(
    recogniser: Recogniser, group: Sequence[Piece], lookahead: int, teacher: WholeTeacher | None, held_from: int = 0
) -> Losses:
    batch = batch_of(group)
    frames, seen = recogniser.decoder.stack(batch.states, batch.seen)
    log_p = recogniser.ctc_log_probabilities(frames)
    limits = token_limits(log_p.detach(), batch, seen.sum(-1), lookahead)
    with mixed_precision():
        logits, step = recogniser.decoder(batch.inputs, frames, seen, True, limits)
    tokens, steps = int(lengths(batch).sum()), int((batch.targets >= 0).sum())
    soft = None if teacher is None else teacher.of(group, batch)
    text = cross_entropy(logits, batch, soft) * steps
    halting = halting_loss(step.running, batch, limits - lookahead, held_from)
    return Losses(ctc_loss(log_p, batch, seen) * max(1, tokens), text, halting * tokens, tokens, steps)


def total(parts: Sequence[Losses]) -> tuple[Tensor, Tensor, Tensor]:
    """CTC, cross-entropy and halting loss, per token."""
    tokens, steps = max(1, sum(p.tokens for p in parts)), max(1, sum(p.steps for p in parts))
    ctc, text, halting = (torch.stack(sums).sum() for sums in zip(*(p[:3] for p in parts), strict=True))
    return ctc / tokens, text / steps, halting / tokens


# ----------------------------------------------------------------------------------------------------------- training


class Task(NamedTuple):
    """What to train: a model with its vocabulary, on some corpora, into a folder."""

    model: Model
    vocabulary: Vocabulary
    corpora: Corpora
    teacher: WholeTeacher | None
    folder: Path
    updates: int
    held_from: int = 0


def train(task: Task, minutes: float) -> None:
    """All updates, or as many as the time permits; the checkpoint in the task's folder is continued."""
    run = Run(task.model, Schedule(RATE_MOST, WARMUP, task.updates, EMA, 0.01), task.folder, FASTER)
    rank, ranks, began = dist.get_rank(), dist.get_world_size(), time.monotonic()
    saved = began
    while not run.is_over and time.monotonic() - began < 60 * minutes:
        start, rng = time.monotonic(), np.random.default_rng([SEED, run.updates, rank])
        lookahead = int(np.random.default_rng([SEED, run.updates]).integers(*LOOKAHEADS, endpoint=True))
        found = pieces(run.model, task.corpora, task.vocabulary, SECONDS / ranks, rng)
        parts = [
            batch_losses(run.model.recogniser, group, lookahead, task.teacher, task.held_from)
            for group in groups(found)
        ]
        ctc, text, halting = total(parts)
        (CTC_WEIGHT * ctc + text + HALTING_WEIGHT * halting).backward()
        run.update()
        if rank:
            continue
        figures = f"ctc {float(ctc.detach()):.3f} text {float(text.detach()):.3f} halting {float(halting.detach()):.3f}"
        print(f"{run.updates} {figures} {time.monotonic() - start:.1f} s", flush=True)
        if time.monotonic() - saved > 60 * SAVE_MINUTES:
            run.save()
            saved = time.monotonic()
    if not rank:
        run.save()
        write_parts(run.average, task.folder)


def started(tokens: int) -> Model:
    """The model of the checkpoints of `adapt.py` and `train.py`."""
    model = Model(tokens)
    model.encoder.load_state_dict(load_file(START[0] / "model.safetensors"))
    model.recogniser.load_state_dict(load_file(START[1] / "model.safetensors"))
    return model


def write_parts(model: Model, folder: Path) -> None:
    """The checkpoints that `export.py` reads."""
    for name in ("encoder", "recogniser"):
        (folder / name).mkdir(exist_ok=True)
        state = getattr(model, name).state_dict()
        save_file({n: p.detach().clone() for n, p in state.items()}, folder / name / "model.safetensors")


@torch.no_grad()
def evaluate(model: Model, vocabulary: Vocabulary, count: int) -> dict[str, float]:
    """WER of greedy CTC, and cross-entropy and accuracy of the decoder given the text, on development sets."""
    result, shape = dict[str, float](), Shape.of(*SIZE)
    chosen = development(count)
    for corpus in dict.fromkeys(name for name, _ in chosen):
        rows = [u for name, u in chosen if name == corpus]
        states = [model.states(samples_of(u), shape, 0)[: frames_of(int(u.seconds * RATE))] for u in rows]
        none = np.zeros(0, np.float32)
        found = [Piece(s, vocabulary.encode(u.text or ""), none) for s, u in zip(states, rows, strict=True)]
        given = forced(model.recogniser, list(map(batch_of, groups(found))), LOOKAHEADS[0] + 2)
        result |= {f"{corpus} {key}": value for key, value in given.items()}
        read = [vocabulary.decode(model.recogniser.read_ctc(s)) for s in states]
        result[f"{corpus} ctc"] = word_error_rate([u.text or "" for u in rows], read)
    return {key: round(value, 3) for key, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["train", "evaluate"], default="train")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--held-from", type=int, default=0, help="lowest layer of the decoder that may not halt early")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = Vocabulary()
    model, folder = started(len(vocabulary)), RUNS / FOLDER.format(arguments.held_from)
    if arguments.command == "train":
        teacher = WholeTeacher(Encoder.pretrained(), Decoder.pretrained(), vocabulary.rows)
        with processes():
            task = Task(model, vocabulary, Corpora(), teacher, folder, arguments.updates, arguments.held_from)
            train(task, arguments.minutes)
        return
    if (folder / "model.safetensors").is_file():
        model.load_state_dict(load_file(folder / "model.safetensors"))
    print(json.dumps(evaluate(model.eval(), vocabulary, 40)))


if __name__ == "__main__":
    main()
