"""A model, its moving average and its optimiser: updates, the rate's schedule, and checkpoints without pickles.

A checkpoint is a folder with model.safetensors (the moving average), training.safetensors (weights and moments) and
state.json.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

from headsync.training.allocator import keep_memory

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Schedule:
    """The rate rises, stays constant, and falls to zero over the last third of the updates."""

    rate: float
    warmup: int
    updates: int
    ema: float
    weight_decay: float = 0.0

    def at(self, update: int) -> float:
        """Rate of an update, counted from 1."""
        return self.rate * min(1.0, update / self.warmup, 3 * (1 - (update - 1) / self.updates))


class Run(Generic[M]):
    """The state of a run; it continues from its folder's checkpoint if there is one."""

    def __init__(self, model: M, schedule: Schedule, folder: Path, faster: dict[str, float] | None = None) -> None:
        """`faster`: factors of the rate by prefix of the parameter name."""
        self.model, self.average, self.schedule, self.folder = model, copy.deepcopy(model), schedule, folder
        self.updates, factors = 0, faster or {}
        groups: list[dict[str, Any]] = [
            {"params": [p], "factor": next((f for start, f in factors.items() if n.startswith(start)), 1.0)}
            for n, p in model.named_parameters()
            if p.requires_grad
        ]
        self.optimiser = torch.optim.AdamW(groups, schedule.rate, betas=(0.9, 0.98), weight_decay=schedule.weight_decay)
        if (folder / "state.json").is_file():
            self._restore()

    @property
    def is_over(self) -> bool:
        return self.updates >= self.schedule.updates

    def update(self) -> None:
        """One update from the gradients; skipped if they are not finite."""
        average_gradients(self.model)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.updates += 1
        for group in self.optimiser.param_groups:
            group["lr"] = group["factor"] * self.schedule.at(self.updates)
        if torch.isfinite(norm):
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        keep = min(self.schedule.ema, 1 - 1 / (1 + self.updates))
        with torch.no_grad():
            for mean, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(new, 1 - keep)

    def save(self) -> None:
        """Write the checkpoint; each old file stays until the new one is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for n, p in self.model.named_parameters():
            tensors[f"weight.{n}"] = p.detach()
            if state := self.optimiser.state.get(p):
                tensors |= {f"first.{n}": state["exp_avg"], f"second.{n}": state["exp_avg_sq"]}
        save_file(tensors, self.folder / "training.part")
        save_file({n: p.detach().clone() for n, p in self.average.state_dict().items()}, self.folder / "model.part")
        (self.folder / "training.part").replace(self.folder / "training.safetensors")
        (self.folder / "model.part").replace(self.folder / "model.safetensors")
        state = {"updates": self.updates, "schedule": asdict(self.schedule)}
        (self.folder / "state.json").write_text(json.dumps(state, indent=1))

    def _restore(self) -> None:
        self.updates = updates_of(self.folder)
        tensors = load_file(self.folder / "training.safetensors")
        self.average.load_state_dict(load_file(self.folder / "model.safetensors"))
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                p.copy_(tensors[f"weight.{n}"])
                if f"first.{n}" not in tensors:  # not trained
                    continue
                moments: dict[str, Any] = {"exp_avg": tensors[f"first.{n}"], "exp_avg_sq": tensors[f"second.{n}"]}
                self.optimiser.state[p] = {"step": torch.tensor(float(self.updates)), **moments}
        print(f"continued from {self.updates} updates", flush=True)


def updates_of(checkpoint: Path) -> int:
    """The number of updates of a checkpoint; 0 if `restore.py` made it from a model folder."""
    state = checkpoint / "state.json"
    return int(json.loads(state.read_text())["updates"]) if state.is_file() else 0


@contextmanager
def processes() -> Iterator[None]:
    """The processes that torchrun started, or one; they keep freed memory: page faults took 42 % of the time."""
    keep_memory()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def average_gradients(model: nn.Module) -> None:
    """The mean over all processes, if there are several."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        joined = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(joined)
        for gradient, mean in zip(gradients, joined.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient) / dist.get_world_size())
