"""The processes of one training run: which this one is, and the few things that they do together.

`torchrun` starts them and says in the environment who is who. A run without it is the only one of its kind, and
nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headsync.errors import ConfigError, HeadsyncError, TrainingError

T = TypeVar("T")

CPU = torch.device("cpu")

_LOST = ("connection", "gloo", "nccl", "socket", "peer")  # how the libraries tell that another process is gone


@dataclass(frozen=True)
class Ranks:
    """This process among `count`, and what it computes on."""

    rank: int = 0
    count: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, and talks to people."""
        return self.rank == 0

    def shared(self, make: Callable[[], T]) -> T:
        """What the first process makes, for all; if it cannot, all of them say why."""
        if self.count == 1:
            return make()
        box: list[Any] = [_told(make) if self.first else None]
        dist.broadcast_object_list(box, src=0)
        if isinstance(box[0], HeadsyncError):
            raise box[0]
        return box[0]

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count == 1:
            return values
        everywhere = values.to(self.device)
        dist.all_reduce(everywhere)
        return everywhere.cpu()


ALONE = Ranks()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Meet the other processes of the run, if there are any; the setting is "auto", "cpu" or "cuda"."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    ranks = Ranks(rank, count, device_of(device, local)) if count > 1 else Ranks(device=device_of(device, local))
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    if count == 1:
        yield ranks
        return
    dist.init_process_group("nccl" if ranks.device.type == "cuda" else "gloo")
    try:
        yield ranks
    except RuntimeError as error:
        if any(word in str(error).lower() for word in _LOST):
            raise TrainingError(f"process {rank}: another process of this run has ended ({_line(error)})") from None
        raise
    dist.destroy_process_group()


def device_of(setting: str, local: int = 0) -> torch.device:
    """The device of a process, the `local`-th of its machine."""
    if setting == "cpu" or (setting == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError('training.device = "cuda", but PyTorch finds no GPU here; set "auto" or "cpu"')
    if local >= torch.cuda.device_count():
        raise ConfigError(f"there are {torch.cuda.device_count()} GPUs here; start no more processes than that")
    return torch.device("cuda", local)


def _told(make: Callable[[], T]) -> T | HeadsyncError:
    try:
        return make()
    except HeadsyncError as error:
        return error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
