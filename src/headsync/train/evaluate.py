"""How good the network is on the development set, between epochs: quick figures to steer by, not to publish.

Shapes: B rows, T encoder frames, L output steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jiwer
import torch
from torch import Tensor

from headsync.config import TrainingConfig
from headsync.nn.model import Model
from headsync.train.data import PADDING, Batch, Batches
from headsync.train.losses import joint_loss
from headsync.train.ranks import ALONE, Ranks

Limits = Callable[[Batch], Tensor | None]  # how far each output step may look; None: everywhere


class DevResult(NamedTuple):
    """Means over the development set."""

    loss: float
    attention_error: float  # of output steps, given the true tokens before
    ctc_error: float  # token error rate of greedy CTC
    unlike: float = 0.0  # share of a teacher's variance that is left open, where the teacher has heard the set


@torch.no_grad()
def evaluate_dev(
    model: Model, batches: Batches, config: TrainingConfig, limits: Limits, ranks: Ranks = ALONE
) -> DevResult:
    """Loss and error rates over all batches, with the threshold and the limits that the model is trained with.

    Where several processes share a run, each takes some of the batches.
    """
    model.eval()
    loss = steps = wrong = edits = tokens = unlike = 0.0
    for number in range(ranks.rank, len(batches), ranks.count):
        batch = batches[number].to(ranks.device)
        output = model(batch.features_BTF, batch.lengths_B, batch.tokens_BL, limits(batch))
        losses = joint_loss(output, batch, config)
        loss += float(losses.joint) * int(losses.steps)
        steps += int(losses.steps)
        wrong += int(losses.wrong)
        unlike += float(losses.unlike) * int(losses.steps)
        e, n = ctc_errors(output.ctc_BTV, output.frames_B, batch)
        edits, tokens = edits + e, tokens + n
    sums = torch.tensor([loss, steps, wrong, edits, tokens, unlike], dtype=torch.float64)
    loss, steps, wrong, edits, tokens, unlike = ranks.total(sums).tolist()
    if not math.isfinite(loss):
        loss = math.inf
    return DevResult(loss / steps, wrong / steps, edits / max(1, tokens), unlike / steps)


def ctc_errors(ctc_BTV: Tensor, frames_B: Tensor, batch: Batch) -> tuple[int, int]:
    """Edits and reference tokens of greedy CTC."""
    edits = tokens = 0
    best_BT, targets_BL = ctc_BTV.argmax(-1).cpu(), batch.targets_BL.cpu()
    for best, frames, target in zip(best_BT, frames_B.tolist(), targets_BL, strict=True):
        labels = torch.unique_consecutive(best[:frames])
        hypothesis = " ".join(str(int(label)) for label in labels if label != 0)
        reference = [str(int(t)) for t in target[target != PADDING][:-1]]
        tokens += len(reference)
        edits += _edits(" ".join(reference), hypothesis)
    return edits, tokens


def _edits(reference: str, hypothesis: str) -> int:
    if not reference:
        return len(hypothesis.split())
    counts = jiwer.process_words(reference, hypothesis)
    return counts.substitutions + counts.deletions + counts.insertions
