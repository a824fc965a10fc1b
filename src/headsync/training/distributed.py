"""The processes of one training run: which this one is, and the few things that they do together.

`torchrun` starts them and says in the environment who is who. A run without it is the only one of its kind, and
nothing here does anything.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP would import it later, and its default arguments would keep the process group alive
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from headsync.errors import ConfigError, HeadsyncError, TrainingError

T = TypeVar("T")

CPU = torch.device("cpu")
PATIENCE = timedelta(seconds=2)  # with a process that has called and may be gone

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
def joined() -> Iterator[Ranks]:
    """Meet the other processes of the run, if there are any.

    At the end gloo's threads are joined. A thread that still releases a tensor when Python finalises asks for the GIL,
    is unwound by `pthread_exit` inside a C++ destructor, and aborts the process. The caller must not keep the model.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    ranks = Ranks(rank, count, device_of(local)) if count > 1 else Ranks(device=device_of(local))
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    if count == 1:
        yield ranks
        return
    store, _, _ = next(rendezvous("env://"))
    called = PrefixStore(meeting(store, rank, count), store)
    backend = "nccl" if ranks.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=called, rank=rank, world_size=count)
    group = dist.group.WORLD  # the last reference: its destructor joins gloo's threads without holding the GIL
    try:
        yield ranks
        ranks.total(torch.zeros(1))  # no process ends before the first has written the model
    except RuntimeError as error:
        if any(word in str(error).lower() for word in _LOST):
            raise TrainingError(f"process {rank}: another process of this run has ended ({_line(error)})") from None
        raise
    gc.collect()  # DDP refers to the group, and is part of reference cycles
    dist.destroy_process_group()
    del group


def meeting(store: Store, rank: int, count: int) -> str:
    """A name for this start of the run, on which all its processes agree.

    The store outlives processes that were killed and started anew, and so does all that they wrote into it: addresses
    of the dead, by which the living would wait for ever. The first process makes up a name, all others answer it, and
    it says whom it has heard. A name from before is found out by that: nobody who lives is on its list.
    """
    own = uuid4().hex
    if rank == 0:
        store.set("headsync/name", own)
        answers = [store.get(f"headsync/{own}/{other}").decode() for other in range(1, count)]
        store.set(f"headsync/{own}/heard", " ".join(answers))
        return own
    while True:
        name = store.get("headsync/name").decode()
        store.set(f"headsync/{name}/{rank}", own)
        with suppress(dist.DistStoreError):
            store.wait([f"headsync/{name}/heard"], PATIENCE)
            if own in store.get(f"headsync/{name}/heard").decode().split():
                return name
        time.sleep(0.05)


def device_of(local: int = 0) -> torch.device:
    """A GPU, if there are any, else the CPU; for the `local`-th process of its machine."""
    if not torch.cuda.is_available():
        return CPU
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
