"""The joint loss of section 5.1: w * CTC + (1 - w) * cross-entropy of the decoder, with label smoothing.

Mechanisms that count tokens add the quantity loss, an encoder that has a teacher how unlike it is, and a teacher that
reads how far CTC is from its reading.

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
    unlike: Tensor  # share of a teacher's variance that the encoder's frames leave open; 0 without a teacher
    misread: Tensor  # divergence of CTC from what the teacher reads, per output step; 0 where it does not read

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
    unlike = teacher_loss(output, batch)
    joint = config.ctc_weight * ctc + (1 - config.ctc_weight) * attention
    misread = reading_loss(output, batch)
    joint = joint + config.quantity_weight * quantity
    joint = joint + config.teacher_weight * unlike + config.reading_weight * misread
    counts = (wrong, exists_BL.sum(), halt, mass)
    return Losses(
        joint, ctc.detach(), attention.detach(), *counts, quantity.detach(), unlike.detach(), misread.detach()
    )


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


def teacher_loss(output: Output, batch: Batch) -> Tensor:
    """The share of the teacher's variance that no linear map of the encoder's frames explains.

    The best map is found anew for each batch, by least squares, so that nothing is learned which recognition does not
    need. As it is the best, the loss does not change with it to first order, and it is taken as given.
    """
    if not batch.states_BTD.numel():
        return output.decoder_BLV.new_zeros(())
    known_BT = ~batch.states_BTD[..., 0].isnan()
    x_NE, y_ND = output.encoded_BTE[known_BT].float(), batch.states_BTD[known_BT]
    if len(x_NE) <= 2 * x_NE.shape[1]:  # so few frames that a map explains them whatever they are
        return output.decoder_BLV.new_zeros(())
    x_NE = x_NE - x_NE.mean(0)
    y_ND = (y_ND - y_ND.mean(0)) / (y_ND.std(0) + 1e-5)
    with torch.no_grad():
        x = x_NE.double()
        ridge = 1e-4 * x.square().mean() * len(x) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        map_ED = torch.linalg.solve(x.T @ x + ridge, x.T @ y_ND.double()).float()
    return (y_ND - x_NE @ map_ED).square().mean()


def reading_loss(output: Output, batch: Batch) -> Tensor:
    """Kullback-Leibler divergence of CTC from the teacher's reading, summed over frames, per output step."""
    if not batch.readings_BTV.numel():
        return output.decoder_BLV.new_zeros(())
    known_BT = ~batch.readings_BTV[..., 0].isnan()
    log_p_NV = output.ctc_BTV[known_BT].float().log_softmax(-1)
    total = F.kl_div(log_p_NV, batch.readings_BTV[known_BT], reduction="sum", log_target=True)
    return total / (batch.targets_BL != PADDING).sum()


@torch.no_grad()
def _watch(output: Output, exists_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Mean halting position and attention mass over layers, heads and steps; nothing where no layer has attended."""
    if not output.alignments:
        return (output.decoder_BLV.new_zeros(()),) * 2
    frames = output.frames_B.clamp(min=1)[:, None, None]
    halts, masses = [], []
    for aligned in output.alignments:
        steps = exists_BL.unsqueeze(1).expand(aligned.end_BHL.shape)
        halts.append((aligned.end_BHL / frames)[steps].mean())
        masses.append(aligned.weights_BHLT.sum(-1)[steps].mean())
    return torch.stack(halts).mean(), torch.stack(masses).mean()
