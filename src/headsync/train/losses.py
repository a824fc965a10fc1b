"""The joint loss of section 5.1: w * CTC + (1 - w) * cross-entropy of the decoder, with label smoothing.

Mechanisms that count tokens add the quantity loss.

Shapes: B rows, T encoder frames, L output steps, V output classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.config import TrainingConfig
from headsync.nn.model import Output
from headsync.train.data import PADDING, Batch
from headsync.train.ranks import Ranks


class Losses(NamedTuple):
    """What an update reports; `joint` is what it descends."""

    joint: Tensor
    ctc: Tensor
    attention: Tensor
    wrong: Tensor  # output steps whose best class is not the target, of
    steps: Tensor
    halt: Tensor  # mean halting position, as a fraction of the utterance
    mass: Tensor  # mean sum of attention weights of a head at a step
    quantity: Tensor  # by how many tokens the mechanisms miscount, per output step; 0 where they do not count

    def detached(self) -> Losses:
        return self._replace(joint=self.joint.detach())


def joint_loss(output: Output, batch: Batch, config: TrainingConfig) -> Losses:
    """The losses of a batch, a mean over its utterances' tokens each."""
    ctc = ctc_loss(output, batch)
    logits = output.decoder_BLV.flatten(0, 1)
    attention = F.cross_entropy(
        logits, batch.targets_BL.flatten(), ignore_index=PADDING, label_smoothing=config.label_smoothing
    )
    exists_BL = batch.targets_BL != PADDING
    wrong = ((output.decoder_BLV.argmax(-1) != batch.targets_BL) & exists_BL).sum()
    halt, mass = _watch(output, exists_BL)
    quantity = quantity_loss(output, batch)
    joint = config.ctc_weight * ctc + (1 - config.ctc_weight) * attention + config.quantity_weight * quantity
    return Losses(joint, ctc.detach(), attention.detach(), wrong, exists_BL.sum(), halt, mass, quantity.detach())


def merged(parts: Sequence[Losses], weights: Sequence[float], ranks: Ranks) -> Losses:
    """The losses of a batch of which each part has its share, in this process and in others."""
    if ranks.count == 1 and len(parts) == 1:
        return parts[0]
    counts = {Losses._fields.index("wrong"), Losses._fields.index("steps")}
    totals = torch.zeros(len(Losses._fields), dtype=torch.float64)
    for losses, weight in zip(parts, weights, strict=True):
        for n, value in enumerate(losses):
            totals[n] += float(value) * (float(weight > 0) if n in counts else weight)
    return Losses(*ranks.total(totals).unbind())


def ctc_loss(output: Output, batch: Batch) -> Tensor:
    """Negative log likelihood of the tokens over all CTC paths, per output step."""
    lengths = (batch.targets_BL != PADDING).sum(1) - 1  # without <eos>
    tokens = batch.targets_BL.clamp(min=0)
    log_p = output.ctc_BTV.float().log_softmax(-1).transpose(0, 1)
    total = F.ctc_loss(log_p, tokens, output.frames_B, lengths, reduction="sum", zero_infinity=True)
    return total / (batch.targets_BL != PADDING).sum()


def quantity_loss(output: Output, batch: Batch) -> Tensor:
    """|expected number of tokens - their number|, a mean over layers and heads, per output step."""
    miscounts_B = [a.surplus_BM.abs().mean(1) for a in output.alignments if a.surplus_BM is not None]
    if not miscounts_B:
        return output.decoder_BLV.new_zeros(())
    return torch.stack(miscounts_B).mean(0).sum() / (batch.targets_BL != PADDING).sum()


@torch.no_grad()
def _watch(output: Output, exists_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Mean halting position and attention mass over layers, heads and steps."""
    frames = output.frames_B.clamp(min=1)[:, None, None]
    halts, masses = [], []
    for aligned in output.alignments:
        steps = exists_BL.unsqueeze(1).expand(aligned.end_BHL.shape)
        halts.append((aligned.end_BHL / frames)[steps].mean())
        masses.append(aligned.weights_BHLT.sum(-1)[steps].mean())
    return torch.stack(halts).mean(), torch.stack(masses).mean()
