"""The joint loss of section 5.1 as a list of terms: CTC, the decoder's cross-entropy, quantity loss, layer match.

The joint loss is the weighted sum of the terms. Every term is a mean over the output steps of a batch; `joint_loss` can
make their sum a mean over utterances. Another loss is another object in the list of `loss_terms`.

Shapes: B rows, T encoder frames, L output steps, V output classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headsync.config import TrainingConfig
from headsync.nn.decoder import Decoder
from headsync.nn.model import Output
from headsync.training.batches import PADDING, Batch
from headsync.training.distributed import Ranks

LAYERWISE_QUANTITY = 0.05  # weight of the quantity loss beside the match of single layers


class Losses(NamedTuple):
    """The loss of a batch, or of a part of it."""

    joint: Tensor  # a mean over output steps, or over utterances; has the gradient
    figures: Mapping[str, Tensor]  # for the log: further means over output steps, without gradient

    @property
    def values(self) -> dict[str, Tensor]:
        return {"loss": self.joint.detach(), **self.figures}


@dataclass(frozen=True)
class LossTerm(ABC):
    weight: float

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, output: Output, batch: Batch) -> Tensor | None:
        """The mean over output steps; None if this term does not apply to the output."""


class CTC(LossTerm):
    """Negative log likelihood of the tokens over all CTC paths."""

    name = "ctc"

    def __call__(self, output: Output, batch: Batch) -> Tensor | None:
        if output.ctc_BTV is None:
            return None
        lengths = (batch.targets_BL != PADDING).sum(1) - 1  # without <eos>
        tokens = batch.targets_BL.clamp(min=0)
        log_p = output.ctc_BTV.float().log_softmax(-1).transpose(0, 1)
        total = F.ctc_loss(log_p, tokens, output.frames_B, lengths, reduction="sum", zero_infinity=True)
        return total / _steps(batch)


@dataclass(frozen=True)
class CrossEntropy(LossTerm):
    """Cross-entropy of the decoder, with label smoothing."""

    name = "attention"
    label_smoothing: float = 0.0

    def __call__(self, output: Output, batch: Batch) -> Tensor | None:
        if output.decoder_BLV is None:
            return None
        logits, targets = output.decoder_BLV.flatten(0, 1), batch.targets_BL.flatten()
        return F.cross_entropy(logits, targets, ignore_index=PADDING, label_smoothing=self.label_smoothing)


class Quantity(LossTerm):
    """|tokens counted - tokens spoken|, or the shortfall of halting sums: a mean over layers and heads."""

    name = "quantity"

    def __call__(self, output: Output, batch: Batch) -> Tensor | None:
        errors = [a.surplus_BM.abs() for a in output.alignments if a.surplus_BM is not None]
        errors += [a.shortfall_BM for a in output.alignments if a.shortfall_BM is not None]
        if not errors:
            return None
        return torch.stack([error_BM.mean(1) for error_BM in errors]).mean(0).sum() / _steps(batch)


class LayerMatch(LossTerm):
    """The variance of a teacher's layer outputs that this decoder's outputs leave unexplained, a mean over layers."""

    name = "layers"

    def __call__(self, output: Output, batch: Batch) -> Tensor | None:
        if not output.wanted_NBLE:
            return None
        exists_BL = batch.targets_BL != PADDING
        pairs = zip(output.layers_NBLE, output.wanted_NBLE, strict=True)
        return torch.stack([_unexplained(x[exists_BL].float(), y[exists_BL].float()) for x, y in pairs]).mean()


@torch.no_grad()
def teacher_states(teacher: Decoder, frames_BTE: Tensor, frames_B: Tensor, batch: Batch) -> list[Tensor]:
    """The input of a teacher's lowest layer and the outputs of all layers; its steps have no limits."""
    limit_BL = frames_B[:, None] * (batch.targets_BL != PADDING)
    embedded_BLE, _ = teacher.inputs(batch.tokens_BL, frames_BTE, limit_BL)
    return [embedded_BLE, *teacher.layer_outputs(batch.tokens_BL, frames_BTE, limit_BL)[0]]


def _unexplained(found_NE: Tensor, wanted_NE: Tensor) -> Tensor:
    spread = (wanted_NE - wanted_NE.mean(0)).square().sum()
    return (found_NE - wanted_NE).square().sum() / spread


def loss_terms(config: TrainingConfig, layerwise: bool = False) -> list[LossTerm]:
    """The terms of a recipe; `layerwise`: of updates in which each layer is trained on the inputs of the teacher's."""
    decoder = CrossEntropy(1 - config.ctc_weight, config.label_smoothing)
    quantity = Quantity(LAYERWISE_QUANTITY if layerwise else 1.0)
    return [CTC(config.ctc_weight), decoder, quantity, LayerMatch(1.0)]


def joint_loss(output: Output, batch: Batch, terms: Sequence[LossTerm], per: str = "token") -> Losses:
    """The weighted sum of the terms, a mean over output steps or utterances, and the figures for the log."""
    values = {term.name: (term.weight, value) for term in terms if (value := term(output, batch)) is not None}
    joint = torch.as_tensor(sum(weight * value for weight, value in values.values()))
    if per == "utterance":
        joint = joint * (_steps(batch) / len(batch.lengths_B))
    figures = {name: value.detach() for name, (_, value) in values.items()}
    return Losses(joint, {**figures, **_decoder_figures(output, batch)})


def merged(parts: Sequence[Losses], weights: Sequence[float], ranks: Ranks) -> dict[str, float]:
    """The figures of a whole batch; `weights` are the shares of the parts in its output steps.

    A part of weight 0 only keeps its process in step; its figures are ignored.
    """
    if ranks.count == 1 and len(parts) == 1:
        return {name: float(value) for name, value in parts[0].values.items()}
    totals = torch.zeros(len(parts[0].values), dtype=torch.float64)
    for part, weight in zip(parts, weights, strict=True):
        if weight > 0:
            totals += weight * torch.tensor([float(value) for value in part.values.values()], dtype=torch.float64)
    return dict(zip(parts[0].values, ranks.total(totals).tolist(), strict=True))


def count_errors(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Output steps whose best class is not the target, and all output steps."""
    assert output.decoder_BLV is not None
    exists_BL = batch.targets_BL != PADDING
    return ((output.decoder_BLV.argmax(-1) != batch.targets_BL) & exists_BL).sum(), exists_BL.sum()


@torch.no_grad()
def _decoder_figures(output: Output, batch: Batch) -> dict[str, Tensor]:
    """Error, halting position and attention mass, means over layers, heads and steps; none without a decoder."""
    if output.decoder_BLV is None:
        return {}
    wrong, steps = count_errors(output, batch)
    frames, exists_BL = output.frames_B.clamp(min=1)[:, None, None], batch.targets_BL != PADDING
    halts, masses = [], []
    for aligned in output.alignments:
        exists_BHL = exists_BL.unsqueeze(1).expand(aligned.end_BHL.shape)
        halts.append((aligned.end_BHL / frames)[exists_BHL].mean())
        masses.append(aligned.weights_BHLT.sum(-1)[exists_BHL].mean())
    return {
        "error": wrong.double() / steps,
        "halt": torch.stack(halts).mean(),  # as a fraction of the utterance
        "mass": torch.stack(masses).mean(),  # sum of the attention weights of a head
    }


def _steps(batch: Batch) -> Tensor:
    return (batch.targets_BL != PADDING).sum()
