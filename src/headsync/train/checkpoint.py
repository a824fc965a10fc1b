"""What a run keeps on disk: everything needed to go on exactly where it was, in safetensors, written atomically.

A checkpoint is one file, so that no moment of a crash can leave parts that do not belong together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headsync.errors import TrainingError


@dataclass
class Progress:
    """Where a run is."""

    update: int = 0  # updates done
    epoch: int = 0  # epochs done
    batch: int = 0  # batches of the present epoch done
    best: list[tuple[float, int]] = field(default_factory=list)  # dev loss and epoch, best first
    fingerprint: str = ""  # of what must not change when a run goes on


def write_atomically(path: Path, content: bytes) -> None:
    """Either the whole new file or the old one, whatever happens."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}); what was there before is intact, "
            "make room and start the same command again"
        ) from None


def save_checkpoint(path: Path, model: nn.Module, adam: torch.optim.Adam, progress: Progress) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in adam.state[parameter].items():
            tensors[f"adam.{key}.{name}"] = value
    write_atomically(path, save(_contiguous(tensors), {"progress": json.dumps(asdict(progress))}))


def load_checkpoint(path: Path, model: nn.Module, adam: torch.optim.Adam) -> Progress:
    """Put model and optimiser back to where they were."""
    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
        model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        for name, parameter in model.named_parameters():
            adam.state[parameter] = {key: tensors[f"adam.{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"{path}: this checkpoint does not fit or is damaged ({error}); delete it to start the run anew"
        ) from None
    progress.best = [(loss, epoch) for loss, epoch in progress.best]
    return progress


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    write_atomically(path, save(_contiguous(weights)))


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several weight files."""
    mean: dict[str, Any] = {}
    for path in paths:
        for name, tensor in load_file(path).items():
            mean[name] = mean.get(name, 0) + tensor.double() / len(paths)
    return {name: tensor.float() for name, tensor in mean.items()}


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
