"""Encoder frames on disk, for runs that do not train the encoder (`training.frame_cache`).

Each encoder has a subfolder, whose name is a checksum of its weights and sizes. Files hold up to 256 utterances in half
precision; an utterance is found by its id, audio file and speed. Missing frames are computed before the first update.
Several runs may share a folder and fill it at the same time; an interrupted one continues with the files that are
missing.

Shapes: B rows, T encoder frames, E width.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from headsync._atomic_write import write_atomically
from headsync.config import Config
from headsync.corpora.manifest import Utterance
from headsync.errors import DataError
from headsync.frontend.audio import FloatArray
from headsync.nn.model import Model
from headsync.training import Say
from headsync.training.batches import Batches

UTTERANCES = 256  # of a file
REPORT_EVERY = 10  # files


class FrameCache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read again which utterances the files hold."""
        self._files = {key: path.name for path in sorted(self.folder.glob("*.safetensors")) for key in _keys(path)}

    def missing(self, utterances: Sequence[Utterance]) -> list[Utterance]:
        """The utterances whose frames are not stored."""
        return [utterance for utterance in utterances if key_of(utterance) not in self._files]

    def read(self, utterance: Utterance) -> FloatArray:
        """The frames of an utterance, (T, E)."""
        key = key_of(utterance)
        path = self.folder / self._files[key]
        try:
            with safe_open(path, "np") as file:
                frames: FloatArray = file.get_tensor(key).astype(np.float32)
                return frames
        except (SafetensorError, OSError) as error:
            raise _damaged(path, error) from None


def encoder_name(model: Model, config: Config) -> str:
    """A checksum of everything that frames depend on except the speech."""
    network = config.network.family, config.network.heads, config.training.precision
    digest = hashlib.sha256(repr((network, config.features, config.encoder)).encode())
    for name, tensor in model.encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def key_of(utterance: Utterance) -> str:
    """A checksum of id, audio file and speed; a file that was written again has another key."""
    try:
        state = utterance.audio.stat()
    except OSError as error:
        raise DataError(f"{utterance.audio}: cannot be read ({error.strerror}); check the manifest.") from None
    parts = utterance.id, os.path.abspath(utterance.audio), state.st_size, state.st_mtime_ns, utterance.speed
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def fill(
    cache: FrameCache,
    model: Model,
    utterances: Sequence[Utterance],
    batches: Callable[[list[Utterance]], Batches],
    precision: Callable[[], AbstractContextManager[Any]],
    say: Say,
) -> None:
    """Compute and store the frames that are missing; `batches` makes those of some utterances."""
    missing = sorted(cache.missing(utterances), key=lambda utterance: utterance.seconds)
    if not missing:
        return
    hours = sum(utterance.seconds for utterance in missing) / 3600
    say(f"computing the encoder frames of {len(missing)} utterances ({hours:.2f} h) in {cache.folder}")
    parts = [missing[first : first + UTTERANCES] for first in range(0, len(missing), UTTERANCES)]
    random.Random(os.getpid()).shuffle(parts)  # processes that fill the same folder seldom compute the same part
    cache.folder.mkdir(parents=True, exist_ok=True)
    model.encoder.eval()
    for number, part in enumerate(parts, 1):
        path = cache.folder / f"{hashlib.sha256(''.join(map(key_of, part)).encode()).hexdigest()[:16]}.safetensors"
        if not path.exists():
            with precision():
                write_atomically(path, save(_frames(model, batches(part))))
        if number % REPORT_EVERY == 0:
            say(f"encoder frames: {number} of {len(parts)} files")
    cache.refresh()


@torch.no_grad()
def _frames(model: Model, batches: Batches) -> dict[str, np.ndarray[Any, Any]]:
    """The frames of all utterances of these batches, by key."""
    device, found = next(model.parameters()).device, {}
    for number, rows in enumerate(batches.rows):
        batch = batches[number].to(device)
        frames_BTE, frames_B = model.encoder.whole(batch.features_BTF, batch.lengths_B)
        for row, frames_TE, count in zip(rows, frames_BTE.cpu(), frames_B.tolist(), strict=True):
            found[key_of(batches.utterances[row])] = frames_TE[:count].half().contiguous().numpy()
    return found


def _keys(path: Path) -> list[str]:
    try:
        with safe_open(path, "np") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: damaged ({error}); delete it, and its frames are computed again.")
