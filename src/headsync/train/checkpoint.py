"""What a run keeps on disk: everything needed to go on exactly where it was, in safetensors, written atomically.

A checkpoint is one file, so that no moment of a crash can leave parts that do not belong together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headsync.errors import TrainingError
from headsync.writing import write_atomically


@dataclass
class Progress:
    """Where a run is."""

    update: int = 0  # updates done
    epoch: int = 0  # epochs done
    batch: int = 0  # batches of the present epoch done
    best: list[tuple[float, int]] = field(default_factory=list)  # dev loss and epoch, best first
    fingerprint: str = ""  # of what must not change when a run goes on
    scale: float = 0.0  # of the losses, and updates since it last changed: in float16 only
    growth: int = 0


Optimiser = torch.optim.Adam | torch.optim.SGD
STATE: dict[type, tuple[str, ...]] = {
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),  # without momentum there is nothing to carry along
}


def save_checkpoint(path: Path, model: nn.Module, adam: Optimiser, progress: Progress) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = adam.state[parameter]  # empty for a parameter that has had no gradient
        tensors |= {f"adam.{key}.{name}": state[key] for key in STATE[type(adam)] if state}
    write_atomically(path, save(_contiguous(tensors), {"progress": json.dumps(asdict(progress))}))


def check_same(path: Path, fingerprint: str) -> None:
    """Refuse to go on with a run of other settings."""
    if path.exists() and _progress(path).fingerprint != fingerprint:
        raise TrainingError(
            f"{path.parent}: holds a run with other settings; give this one another training.folder, or delete that one"
        )


def load_checkpoint(path: Path, model: nn.Module, adam: Optimiser, fingerprint: str) -> Progress:
    """Put model and optimiser back to where they were, in a run of the same fingerprint."""
    check_same(path, fingerprint)
    progress = _progress(path)
    with _telling(path):
        _restore(load_file(path), model, adam)
    return progress


def _progress(path: Path) -> Progress:
    with _telling(path), safe_open(path, "pt") as file:
        progress = Progress(**json.loads(file.metadata()["progress"]))
        progress.best = [(loss, epoch) for loss, epoch in progress.best]
        return progress


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"{path}: this checkpoint does not fit or is damaged ({reason}); delete it to start the run anew"
        ) from None


def _restore(tensors: Mapping[str, Tensor], model: nn.Module, adam: Optimiser) -> None:
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    for name, parameter in model.named_parameters():
        if f"adam.step.{name}" in tensors:  # a parameter without a gradient has no state
            state = {key: tensors[f"adam.{key}.{name}"] for key in STATE[type(adam)]}
            adam.state[parameter] = {key: t.to(parameter.device) if t.dim() else t for key, t in state.items()}


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    write_atomically(path, save(_contiguous(weights)))


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several weight files, of the same tensors."""
    mean: dict[str, Any] = {}
    for path in paths:
        weights = load_file(path)
        if mean and mean.keys() != weights.keys():
            raise KeyError(f"{path} holds other tensors")
        for name, tensor in weights.items():
            mean[name] = mean.get(name, 0) + tensor.double() / len(paths)
    return {name: tensor.float() for name, tensor in mean.items()}


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
