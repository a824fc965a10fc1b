"""One update: the gradient of a batch, summed over its parts and over all processes, and a step of the optimiser.

The loss of an update is a mean over all output steps of its batch. A part counts by its share of them, so that neither
the number of processes nor that of parts changes what is learned, but for the rounding of sums and for dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from headsync.attention.base import at_least_single
from headsync.config import TrainingConfig
from headsync.errors import TrainingError
from headsync.train.checkpoint import Optimiser, Progress
from headsync.train.ranks import Ranks

P = TypeVar("P")
L = TypeVar("L")

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FIRST_SCALE = 1024.0  # of the losses in float16, whose gradients would vanish otherwise; it grows as far as it can
LEAST_SCALE = 1e-3


class Descent:
    """How a network learns from batches: in which precision, in how many parts, in how many processes."""

    def __init__(self, model: nn.Module, optimiser: Optimiser, settings: TrainingConfig, ranks: Ranks) -> None:
        self.model, self.optimiser, self.settings, self.ranks = model, optimiser, settings, ranks
        self.network = model if ranks.count == 1 else _together(model, ranks)
        self.scaler: Any = None
        if settings.precision == "float16":
            self.scaler = torch.amp.GradScaler(ranks.device.type, FIRST_SCALE)

    def resume(self, progress: Progress) -> None:
        """Take up the scale of the losses where it was."""
        if self.scaler and progress.scale:
            state = {"scale": progress.scale, "_growth_tracker": progress.growth}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **state})

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the network runs."""
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.ranks.device.type, DTYPES[self.settings.precision])

    def gradient(
        self, number: int, parts: Sequence[P], weights: Sequence[float], loss_of: Callable[[P], tuple[L, Tensor]]
    ) -> list[L]:
        """Gradients of all parts, here and elsewhere; `loss_of` a part tells its figures and its mean loss.

        Dropout is seeded by the number of the update and of the part, so that it needs no state.
        """
        self.optimiser.zero_grad()
        told = []
        for n, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            place = self.ranks.rank * self.settings.accumulate + n
            torch.manual_seed(self.settings.seed * 1_000_003 + number + place * 2**40)
            with self._unshared() if n + 1 < len(parts) else nullcontext():
                with self.precision():
                    figures, loss = loss_of(part)
                loss = loss * (weight * self.ranks.count)  # gradients are averaged over processes
                (self.scaler.scale(loss) if self.scaler else loss).backward()
            told.append(figures)
        return told

    def step(self, number: int, remedy: str) -> None:
        """One step of the optimiser with the gradient, clipped."""
        if self.scaler:
            self.scaler.unscale_(self.optimiser)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        lost = self.scaler.get_scale() < LEAST_SCALE if self.scaler else not torch.isfinite(norm)
        if lost:
            raise TrainingError(f"update {number}: the gradient is no longer a number; {remedy}")
        if self.scaler:
            self.scaler.step(self.optimiser)  # or none, if the scale was too large for a gradient
            self.scaler.update()
        else:
            self.optimiser.step()

    def note(self, progress: Progress) -> None:
        """What has to be kept of this with a checkpoint."""
        if self.scaler:
            state = self.scaler.state_dict()
            progress.scale, progress.growth = float(state["scale"]), int(state["_growth_tracker"])

    def _unshared(self) -> AbstractContextManager[Any]:
        """Processes hand their gradients around once in an update, with its last part."""
        network = self.network
        return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()


def _together(model: nn.Module, ranks: Ranks) -> nn.Module:
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, find_unused_parameters=True)


def recompute(layers: Sequence[nn.Module], method: str) -> None:
    """Let layers forget what they computed, and compute it again for the gradient: less memory, a third more time."""
    for layer in layers:
        setattr(layer, method, partial(checkpoint, getattr(layer, method), use_reentrant=False))


def in_single(mechanisms: Sequence[Any]) -> None:
    """Let mechanisms attend in float32 where the rest is in half precision: their sums decide where a step halts."""
    for mechanism in mechanisms:
        mechanism.align = partial(_in_single, mechanism.align)


def _in_single(align: Callable[..., Any], q: Tensor, k: Tensor, limit: Tensor) -> Any:
    with torch.autocast(q.device.type, enabled=False):
        return align(at_least_single(q), at_least_single(k), limit)
