"""Checkpoints: everything needed to resume a run exactly, in one safetensors file, written atomically.

The previous checkpoint is kept beside it, in case the last one is damaged later, for example by a broken disk. Every
checkpoint contains the SHA-256 of its file, computed with zeros in the place of the digest.

It also contains the settings that must stay the same when the run resumes, if they differ from their defaults: a
version with more settings can resume the run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headsync._atomic_write import write_atomically
from headsync.config import TABLES_OF_KIND, Config
from headsync.errors import TrainingError
from headsync.text.vocabulary import Vocabulary
from headsync.training import Say


@dataclass
class TrainingProgress:
    update: int = 0  # updates done
    epoch: int = 0  # epochs done
    batch: int = 0  # batches of the current epoch done
    best: list[tuple[float, int]] = field(default_factory=list)  # score and epoch of the epochs to average, best first
    leader: tuple[float, int] | None = None  # score and epoch of the best epoch
    settings: dict[str, Any] = field(default_factory=dict)  # must not change when the run resumes
    scale: float = 0.0  # loss scale and updates since it last changed, in float16
    growth: int = 0


Optimiser = torch.optim.Adam | torch.optim.SGD
STATE: dict[type, tuple[str, ...]] = {
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),  # without momentum it has no state
}
NO_DIGEST = "0" * 64
FREE = ("epochs", "patience", "checkpoint_seconds", "folder", "accumulate")  # settings that may change in a run
_FREE = {*(f"training.{name}" for name in FREE), "data.workers"}
_VOCABULARY = "vocabulary"


def save_checkpoint(path: Path, model: nn.Module, optimiser: Optimiser, progress: TrainingProgress) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimiser.state[parameter]  # empty for a parameter that never had a gradient
        tensors |= {f"adam.{key}.{name}": state[key] for key in STATE[type(optimiser)] if state}
    with suppress(OSError):  # without hard links one checkpoint is kept
        previous(path).unlink(missing_ok=True)
        os.link(path, previous(path))
    stored = json.dumps({"sha256": NO_DIGEST, **asdict(progress)})
    data = save(_contiguous(tensors), {"progress": stored})
    write_atomically(path, data.replace(NO_DIGEST.encode(), hashlib.sha256(data).hexdigest().encode(), 1))


def previous(path: Path) -> Path:
    return path.with_stem(path.stem + ".previous")


def replace_damaged(path: Path, say: Say) -> None:
    """Replace the last checkpoint by the previous one if it is damaged."""
    if not path.exists() or not previous(path).exists():
        return
    try:
        read_progress(path)
    except TrainingError:
        with suppress(TrainingError):  # both are damaged, which loading reports
            update = read_progress(previous(path)).update
            os.replace(previous(path), path)
            say(f"{path}: damaged; replaced by the checkpoint before it, of update {update}")


def check_same(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings."""
    if not path.exists():
        return
    if changed := difference(read_progress(path).settings, settings):
        raise TrainingError(
            f"{path.parent}: holds a run with other settings: {changed}; "
            "choose another training.folder, or delete this one"
        )


def load_checkpoint(
    path: Path, model: nn.Module, optimiser: Optimiser, settings: Mapping[str, Any]
) -> TrainingProgress:
    """Restore model and optimiser from a run with the same settings."""
    check_same(path, settings)
    progress = read_progress(path)
    with _damaged(path):
        _restore(load_file(path), model, optimiser)
    return progress


def read_progress(path: Path) -> TrainingProgress:
    with _damaged(path), safe_open(path, "pt") as file:
        stored = json.loads(file.metadata()["progress"])
        digest = stored.pop("sha256")
        data = path.read_bytes().replace(digest.encode(), NO_DIGEST.encode(), 1)
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError("its SHA-256 differs")
        progress = TrainingProgress(**stored)
        progress.best = [(score, epoch) for score, epoch in progress.best]
        progress.leader = (progress.leader[0], progress.leader[1]) if progress.leader else None
        return progress


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"{path}: this checkpoint does not fit or is damaged ({reason}); delete it to start the run again"
        ) from None


def _restore(tensors: Mapping[str, Tensor], model: nn.Module, optimiser: Optimiser) -> None:
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    for name, parameter in model.named_parameters():
        if f"adam.step.{name}" in tensors:  # a parameter that never had a gradient has no state
            state = {key: tensors[f"adam.{key}.{name}"] for key in STATE[type(optimiser)]}
            optimiser.state[parameter] = {key: t.to(parameter.device) if t.dim() else t for key, t in state.items()}


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    write_atomically(path, save(_contiguous(weights)))


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of epochs of a run."""
    mean: dict[str, Any] = {}
    try:
        for path in paths:
            weights = load_file(path)
            if mean and mean.keys() != weights.keys():
                raise KeyError(f"{path} holds other tensors")
            for name, tensor in weights.items():
                mean[name] = mean.get(name, 0) + tensor.double() / len(paths)
    except (SafetensorError, OSError, KeyError) as error:
        names, reason = ", ".join(path.name for path in paths), str(error).partition("\n")[0]
        raise TrainingError(
            f"{paths[0].parent}: the weights of an epoch, one of {names}, cannot be read ({reason}); "
            "delete this folder to start the run again"
        ) from None
    return {name: tensor.float() for name, tensor in mean.items()}


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def fixed_settings(config: Config, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """The settings that weights depend on, by "table.key", and a digest of the vocabulary."""
    defaults = _all_settings(Config(kind=config.kind))
    found = {name: value for name, value in _all_settings(config).items() if value != defaults[name]}
    if vocabulary is not None:
        found[_VOCABULARY] = hashlib.sha256("\n".join(vocabulary.tokens).encode()).hexdigest()[:16]
    return found


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """A description of the settings that differ; "" without a difference."""
    defaults = {name: value for kind in TABLES_OF_KIND for name, value in _all_settings(Config(kind=kind)).items()}
    changed = []
    for name in sorted({*before, *now} - {_VOCABULARY}):
        old, new = (settings.get(name, defaults.get(name)) for settings in (before, now))
        if old != new:
            changed.append(f"{name} was {old!r} and is now {new!r}")
    if not changed and before.get(_VOCABULARY) != now.get(_VOCABULARY):
        changed = ["the vocabulary, built from data.train, has changed"]
    return ", ".join(changed)


def _all_settings(config: Config) -> dict[str, Any]:
    tables = (table for table in TABLES_OF_KIND[config.kind] if table not in ("decoding", "endpoint"))
    found = {f"{table}.{key}": value for table in tables for key, value in asdict(getattr(config, table)).items()}
    return {name: value for name, value in found.items() if name not in _FREE}
