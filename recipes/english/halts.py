"""Where the steps of the decoder halt, and what halting costs, given the text.

    python recipes/english/halts.py                       # the first run of finetune.py
    python recipes/english/halts.py --encoder runs/english/adapt/last --recogniser runs/english/train/last

The first table has, for limits of some frames after the CTC spike of each token (forced alignment), cross-entropy and
accuracy of the next token without and with halting, and those of Moonshine's softmax decoder on the same states. The
second has percentiles of the halts of each layer, in frames after the spike; halts are at most LAST frames after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from cache import development
from convert import Batch
from finetune import FOLDER, SIZE, Model, Piece, batch_of, groups
from moonshine import EOS, LAYERS, RATE, Decoder, Shape, frames_of
from safetensors.torch import load_file
from speech import RUNS, samples_of
from train import Recogniser, Teacher, forced, teacher_forced, token_limits
from vocabulary import Vocabulary

LIMITS, LAST = (2, 4, 8), 8
PERCENTILES = (5, 25, 50, 75, 95)


@torch.no_grad()
def batches(model: Model, vocabulary: Vocabulary, corpus: str, count: int) -> list[Batch]:
    """Development utterances, each a stream of its own."""
    found = list[Piece]()
    for utterance in (u for name, u in development(count) if name == corpus):
        states = model.states(samples_of(utterance), Shape.of(*SIZE), 0)[: frames_of(int(utterance.seconds * RATE))]
        found.append(Piece(states, vocabulary.encode(utterance.text or ""), np.zeros(0, np.float32)))
    return [batch_of(group) for group in groups(found)]


@torch.no_grad()
def halts(recogniser: Recogniser, found: Sequence[Batch]) -> np.ndarray:
    """Halts in frames after the spike: a row for each layer, a column for each token."""
    parts = []
    for batch in found:
        frames, seen = recogniser.decoder.stack(batch.states, batch.seen)
        limits = token_limits(recogniser.ctc_log_probabilities(frames), batch, seen.sum(-1), LAST)
        _, step = recogniser.decoder(batch.inputs, frames, seen, True, limits)
        after = step.ends - (limits - LAST)[..., None]
        parts.append(after[(batch.targets >= 0) & (batch.targets != EOS)])
    return torch.cat(parts).T.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, default=RUNS / FOLDER.format(0) / "encoder")
    parser.add_argument("--recogniser", type=Path, default=RUNS / FOLDER.format(0) / "recogniser")
    parser.add_argument("--corpus", choices=["librispeech", "commonvoice", "harpervalley"], default="commonvoice")
    parser.add_argument("--utterances", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = Vocabulary()
    model = Model(len(vocabulary)).eval()
    for name in ("encoder", "recogniser"):
        getattr(model, name).load_state_dict(load_file(getattr(arguments, name) / "model.safetensors"))
    found = batches(model, vocabulary, arguments.corpus, arguments.utterances)
    teacher = Teacher(Decoder.pretrained(), vocabulary.rows)
    print("| limit | without halting | with halting | softmax decoder |\n|---|---|---|---|")
    for limit in LIMITS:
        results = [forced(model.recogniser, found, limit, halting) for halting in (False, True)]
        results.append(teacher_forced(teacher, model.recogniser, found, limit))
        cells = [f"{one['cross-entropy']:.3f}, {one['accuracy']:.1f} %" for one in results]
        print(f"| {limit} | {' | '.join(cells)} |", flush=True)
    print(f"\n| layer | {' | '.join(f'{p} %' for p in PERCENTILES)} |\n|{'---|' * (1 + len(PERCENTILES))}")
    for layer, row in zip(range(LAYERS), halts(model.recogniser, found), strict=True):
        print(f"| {layer} | {' | '.join(f'{value:.0f}' for value in np.percentile(row, PERCENTILES))} |")


if __name__ == "__main__":
    main()
