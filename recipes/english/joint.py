"""Train encoder, CTC and online decoder together at a low rate: the last stage.

    python recipes/english/joint.py                   # continues from runs/english/joint/last
    torchrun --nproc-per-node 2 recipes/english/joint.py        # the streams of an update shared by two processes

The encoder starts from `adapt.py`, CTC and decoder from `train.py`. An update is a batch of streams of one to several
utterances with pauses, augmented (`augment.py`), with block sizes and phase drawn for each update, so that one model
serves several delays. Some pieces are background without text. The pieces are cut out of the states, so CTC and the
decoder train on states from the start and the middle of a stream, with the same losses as in `train.py`. The checkpoint
has the moving average of the weights of encoder (encoder.) and recogniser (recogniser.).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from adapt import SHAPES
from augment import augmented, finished, noise
from background import background
from cache import development, labelled
from convert import Batch, padded_batch
from moonshine import FIELD, HOP, RATE, Encoder, Shape, frames_of, mixed_precision
from optimisation import Run, Schedule, processes
from safetensors.torch import load_file
from score import word_error_rate
from speech import RUNS, Utterance, levelled, padded, samples_of
from targets import Targets
from torch import Tensor, nn
from train import CTC_WEIGHT, LOOKAHEADS, MECHANISM, Recogniser
from vocabulary import Vocabulary

FOLDER = RUNS / "joint/last"
SECONDS = 96.0  # of speech in an update
STREAM = (4.0, 26.0)  # seconds of a stream
CTC_RATE = 4.0  # factor of the rate for CTC's own layers
BACKGROUND = 0.06  # share of pieces without speech
WEIGHTS = {"librispeech": 3.0, "digits": 0.5}  # how often an utterance is drawn, relative to the other corpora
SEED, SAVE_MINUTES, EVALUATE_UPDATES, EVALUATED = 1, 4.0, 200, 30


class Whole(nn.Module):
    """Encoder, CTC and decoder."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.encoder, self.recogniser = Encoder(), Recogniser(MECHANISM, tokens)

    @staticmethod
    def from_stages(tokens: int, encoder: Path, recogniser: Path) -> Whole:
        """The weights of the previous stages."""
        whole = Whole(tokens)
        whole.encoder.load_state_dict(load_file(encoder / "model.safetensors"))
        whole.recogniser.load_state_dict(load_file(recogniser / "model.safetensors"))
        return whole

    def states(self, samples_BN: Tensor, lengths_B: Tensor, shape: Shape, phase: int) -> Tensor:
        """Streaming states of whole streams; `phase` frames of the first block lie before the start."""
        front, _ = self.encoder.front(samples_BN)
        frames = torch.tensor([frames_of(int(n)) for n in lengths_B])
        valid = torch.arange(front.shape[1]) < frames[:, None]
        with mixed_precision():
            found = self.encoder.blocks(F.pad(front, (0, 0, phase, 0)), shape, F.pad(valid, (phase, 0)))
        return found[:, phase:].float()


class Piece(NamedTuple):
    """Speech with its text, or background without."""

    id: str
    text: str
    samples: np.ndarray


class Stream(NamedTuple):
    """Samples of pieces with pauses; first frame and number of frames of each piece."""

    samples: np.ndarray
    pieces: list[Piece]
    places: list[tuple[int, int]]


def choose(
    utterances: Sequence[Utterance], chances: np.ndarray, rng: np.random.Generator, seconds: float
) -> Iterator[list[Piece]]:
    """Streams of about the same length for an update."""
    length, total = rng.uniform(*STREAM), 0
    while total < seconds * RATE:
        stream: list[Piece] = []
        while not stream or sum(len(piece.samples) for piece in stream) < 0.75 * length * RATE:
            if rng.random() < BACKGROUND:
                stream.append(Piece("", "", background(utterances, rng)))
                continue
            utterance = utterances[rng.choice(len(utterances), p=chances)]
            samples = levelled(samples_of(utterance)) * np.float32(10 ** (rng.normal(0, 2) / 20))
            stream.append(Piece(utterance.id, utterance.text or "", augmented(samples, rng)))
        total += sum(len(piece.samples) for piece in stream)
        yield stream


def build_stream(pieces: list[Piece], rng: np.random.Generator) -> Stream:
    """Join pieces; each starts at a multiple of a pair of states."""
    parts, places, place = list[np.ndarray](), [], 0
    for piece in pieces:
        pause = np.zeros(int(rng.exponential(0.4) * RATE), np.float32)
        pause = np.pad(pause, (0, -(len(piece.samples) + len(pause)) % (2 * HOP)))
        places.append((place // HOP, frames_of(len(piece.samples))))
        parts += [piece.samples, pause]
        place += len(piece.samples) + len(pause)
    row = np.concatenate(parts)
    row = row + noise(len(row), rng) * np.float32(10 ** (rng.uniform(-80, -50) / 20))
    return Stream(np.pad(finished(row, rng), (0, FIELD)), pieces, places)


def cut(states_BTD: Tensor, streams: Sequence[Stream], vocabulary: Vocabulary) -> Batch:
    """The pieces of all streams."""
    found, texts = [], []
    for row, stream in enumerate(streams):
        for piece, (first, count) in zip(stream.pieces, stream.places, strict=True):
            found.append(states_BTD[row, first : first + count])
            texts.append(vocabulary.encode(piece.text))
    return padded_batch(found, texts)


def train(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Make all updates of a run."""
    model = Whole.from_stages(len(vocabulary), arguments.encoder, arguments.decoder)
    schedule = Schedule(arguments.rate, 40, arguments.updates, 0.99, 0.01)
    run = Run(model, schedule, arguments.folder, {"recogniser.ctc.": CTC_RATE})
    known = [(corpus, u) for corpus, u in labelled() if u.text and 0.6 <= u.seconds < STREAM[1]]
    utterances, weights = [u for _, u in known], np.array([WEIGHTS.get(corpus, 1.0) for corpus, _ in known])
    sizes, often = [Shape.of(*s) for s, _ in SHAPES], np.array([p for _, p in SHAPES])
    chances = weights / weights.sum()
    targets, saved, rank, ranks = Targets(), time.monotonic(), dist.get_rank(), dist.get_world_size()
    while not run.is_over:
        rng, start = np.random.default_rng([SEED, run.updates, rank]), time.monotonic()
        streams = [build_stream(part, rng) for part in choose(utterances, chances, rng, SECONDS / ranks)]
        shape = sizes[rng.choice(len(sizes), p=often / often.sum())]
        samples, lengths = padded([stream.samples for stream in streams])
        states = run.model.states(samples, lengths, shape, int(rng.integers(shape.centre)))
        batch = cut(states, streams, vocabulary)
        soft = targets.batch([piece.id for stream in streams for piece in stream.pieces], batch.targets)
        ctc, entropy = run.model.recogniser.losses(batch, soft, True, int(rng.integers(*LOOKAHEADS, endpoint=True)))
        (CTC_WEIGHT * ctc + (1 - CTC_WEIGHT) * entropy).backward()
        run.update()
        if rank:
            continue
        figures = f"ctc {ctc.item():.3f} entropy {entropy.item():.3f} {time.monotonic() - start:.1f} s"
        print(f"{run.updates} {figures}", flush=True)
        if time.monotonic() - saved > 60 * SAVE_MINUTES:
            run.save()
            saved = time.monotonic()
        if run.updates % EVALUATE_UPDATES == 0:
            run.save()
            print("evaluation", json.dumps(evaluate(run.average, vocabulary, EVALUATED)), flush=True)
    if not rank:
        run.save()


@torch.no_grad()
def evaluate(model: Whole, vocabulary: Vocabulary, count: int) -> dict[str, float]:
    """WER of CTC alone and of the decoder alone (greedy) on the first utterances of each development set."""
    found: dict[str, tuple[list[str], list[str], list[str]]] = {}
    for corpus, utterance in development(count):
        samples, lengths = padded([samples_of(utterance)])
        states = model.states(samples, lengths, Shape.of(*SHAPES[0][0]), 0)[0]
        row = (
            utterance.text or "",
            vocabulary.decode(model.recogniser.read_ctc(states)),
            vocabulary.decode(model.recogniser.decoder.greedy(states, True)),
        )
        for column, text in zip(found.setdefault(corpus, ([], [], [])), row, strict=True):
            column.append(text)
    rates = {}
    for corpus, (texts, ctc, decoder) in found.items():
        rates[f"{corpus} ctc"] = round(word_error_rate(texts, ctc), 2)
        rates[f"{corpus} decoder"] = round(word_error_rate(texts, decoder), 2)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, default=RUNS / "adapt/last", help="checkpoint of adapt.py")
    parser.add_argument("--decoder", type=Path, default=RUNS / "train/last", help="checkpoint of train.py")
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--evaluate", action="store_true", help="measure only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = Vocabulary()
    if arguments.evaluate:
        model = Whole(len(vocabulary)).eval()
        model.load_state_dict(load_file(arguments.folder / "model.safetensors"))
        print(json.dumps(evaluate(model, vocabulary, 100)))
        return
    with processes():
        train(arguments, vocabulary)


if __name__ == "__main__":
    main()
