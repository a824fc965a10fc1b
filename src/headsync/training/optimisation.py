"""One update: the gradient of a batch, summed over its parts and over all processes, and a step of the optimiser.

The loss of an update is a mean over its whole batch. A part counts by its share of the output steps, so neither the
number of processes nor the number of parts changes the update, except for rounding and dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headsync.attention.cif import CIF
from headsync.attention.energies import at_least_single
from headsync.config import TrainingConfig
from headsync.errors import TrainingError
from headsync.training.bucketing import Share
from headsync.training.checkpoint import Optimiser, TrainingProgress
from headsync.training.distributed import Ranks
from headsync.training.losses import Losses

P = TypeVar("P")

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FIRST_SCALE = 1024.0  # of the loss in float16, where small gradients would vanish; the scaler adapts it
LEAST_SCALE = 1e-3
CLIP_NORM = 5.0  # as in ESPnet


class Updater:
    """Computes gradients and steps an optimiser, in the configured precision, parts and processes."""

    def __init__(self, model: nn.Module, optimiser: Optimiser, settings: TrainingConfig, ranks: Ranks) -> None:
        self.model, self.optimiser, self.settings, self.ranks = model, optimiser, settings, ranks
        self.network = model if ranks.count == 1 else _distributed(model, settings, ranks)
        self.scaler: Any = None
        if settings.precision == "float16":
            self.scaler = torch.amp.GradScaler(ranks.device.type, FIRST_SCALE)

    def restore_scale(self, progress: TrainingProgress) -> None:
        if self.scaler and progress.scale:
            state = {"scale": progress.scale, "_growth_tracker": progress.growth}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **state})

    def store_scale(self, progress: TrainingProgress) -> None:
        if self.scaler:
            state = self.scaler.state_dict()
            progress.scale, progress.growth = float(state["scale"]), int(state["_growth_tracker"])

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the network runs."""
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.ranks.device.type, DTYPES[self.settings.precision])

    def gradient(self, number: int, share: Share[P], loss: Callable[[nn.Module, P], Losses]) -> list[Losses]:
        """Gradients of all parts in all processes, and the losses of the parts in this one.

        The seed of dropout follows from the numbers of update and part, so dropout needs no state in a checkpoint.
        """
        self.optimiser.zero_grad()
        losses = []
        for n, (part, weight) in enumerate(zip(share.parts, share.weights, strict=True)):
            place = self.ranks.rank * self.settings.accumulate + n
            torch.manual_seed(self.settings.seed * 1_000_003 + number + place * 2**40)
            with self._without_exchange() if n + 1 < len(share.parts) else nullcontext():
                with self.precision():
                    part_losses = loss(self.network, part)
                scaled = part_losses.joint * (weight * self.ranks.count)  # averaged over processes
                (self.scaler.scale(scaled) if self.scaler else scaled).backward()
            losses.append(Losses(part_losses.joint.detach(), part_losses.figures))
        return losses

    def step(self, number: int, rate: float, remedy: str) -> None:
        """One step of the optimiser with the clipped gradient; `remedy` is for a gradient that is not finite."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        if self.scaler:
            self.scaler.unscale_(self.optimiser)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        diverged = self.scaler.get_scale() < LEAST_SCALE if self.scaler else not torch.isfinite(norm)
        if diverged:
            raise TrainingError(f"update {number}: the gradient is not finite; {remedy}")
        if self.scaler:
            self.scaler.step(self.optimiser)  # skipped if the scale was too large for a gradient
            self.scaler.update()
        else:
            self.optimiser.step()

    def _without_exchange(self) -> AbstractContextManager[Any]:
        """Processes exchange gradients once in an update, with its last part."""
        network = self.network
        return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()


def _distributed(model: nn.Module, settings: TrainingConfig, ranks: Ranks) -> nn.Module:
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    queries_unused = any(isinstance(module, CIF) for module in model.modules())
    unused = queries_unused or settings.match_updates > 0  # layerwise updates do not use the output layer
    return DistributedDataParallel(model, device_ids=devices, find_unused_parameters=unused)


def align_in_float32(mechanisms: Sequence[Any]) -> None:
    """Run mechanisms in float32 if the rest is in half precision: their sums decide where a step halts."""
    for mechanism in mechanisms:
        mechanism.align = partial(_align_in_float32, mechanism.align)


def _align_in_float32(align: Callable[..., Any], q: Tensor, k: Tensor, limit: Tensor) -> Any:
    with torch.autocast(q.device.type, enabled=False):
        return align(at_least_single(q), at_least_single(k), limit)
