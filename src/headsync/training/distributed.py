"""The processes of one training run: the rank of this process, and the operations that all processes share.

`torchrun` starts the processes and sets their ranks in the environment. Without it, a run has one process, and the
functions here have no effect.
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
PATIENCE = timedelta(seconds=2)  # wait for a reply to this start of the run

_LOST = ("connection", "gloo", "nccl", "socket", "peer")  # words in library errors after another process has ended


@dataclass(frozen=True)
class Ranks:
    """The rank of this process among `count`, and its device."""

    rank: int = 0
    count: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0

    def shared(self, make: Callable[[], T]) -> T:
        """The result of `make` in the first process, for all processes; all of them raise its error."""
        if self.count == 1:
            return make()
        box: list[Any] = [_result_or_error(make) if self.first else None]
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
    """Join the process group of the run, if there are several processes.

    At the end gloo's threads are joined. A thread that releases a tensor while Python finalises requests the GIL, is
    unwound by `pthread_exit` inside a C++ destructor, and aborts the process. The caller must not keep the model.
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
            reason = " ".join(str(error).split())[:120]
            raise TrainingError(f"process {rank}: another process of this run has ended ({reason})") from None
        raise
    gc.collect()  # DDP refers to the group, and is part of reference cycles
    dist.destroy_process_group()
    del group


def meeting(store: Store, rank: int, count: int) -> str:
    """A name for this start of the run, on which all its processes agree.

    The store outlives restarted processes and keeps the addresses of those that were killed; a process that used them
    would wait forever. The first process therefore chooses a new name, all others reply to it with their ids, and it
    publishes the ids that it received. A name from an earlier start is rejected, because its list has no current id.
    """
    own = uuid4().hex
    if rank == 0:
        store.set("headsync/name", own)
        answers = [store.get(f"headsync/{own}/{other}").decode() for other in range(1, count)]
        store.set(f"headsync/{own}/replies", " ".join(answers))
        return own
    while True:
        name = store.get("headsync/name").decode()
        store.set(f"headsync/{name}/{rank}", own)
        with suppress(dist.DistStoreError):
            store.wait([f"headsync/{name}/replies"], PATIENCE)
            if own in store.get(f"headsync/{name}/replies").decode().split():
                return name
        time.sleep(0.05)


def device_of(local: int = 0) -> torch.device:
    """A GPU, if there are any, else the CPU; for the `local`-th process of its machine."""
    if not torch.cuda.is_available():
        return CPU
    if local >= torch.cuda.device_count():
        raise ConfigError(f"this machine has {torch.cuda.device_count()} GPUs; start at most one process per GPU")
    return torch.device("cuda", local)


def _result_or_error(make: Callable[[], T]) -> T | HeadsyncError:
    try:
        return make()
    except HeadsyncError as error:
        return error
