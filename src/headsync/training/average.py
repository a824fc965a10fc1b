"""The mean of the weights of several models of one training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from headsync._atomic_write import write_atomically
from headsync.engine import refuse_int8
from headsync.errors import ModelError
from headsync.model_folder import CARD, WEIGHTS, ModelFolder, checksummed, load_folder, save_folder
from headsync.training.checkpoint import average, save_weights


def mean_model(models: Sequence[ModelFolder], out: Path) -> ModelFolder:
    """Write the mean of the models to `out`, with the settings and the other files of the last one."""
    last = models[-1]
    if out.resolve() in {one.path.resolve() for one in models}:
        raise ModelError(f"{out}: this is one of the models to average; name another folder")
    for one in models:
        refuse_int8(one)
        if not _alike(one, last):
            raise ModelError(
                f"{one.path}: its network differs from that of {last.path}, so they cannot be averaged; "
                "choose models of one training run"
            )
    try:
        weights = average([one.weights for one in models])
    except (KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"{last.path}: its weights do not fit those of the others ({reason})") from None
    save_folder(out, last.config, last.vocabulary, last.statistics)
    names = ", ".join(str(one.path) for one in models)
    write_atomically(out / CARD, f"# {out.name}\n\nThe mean of the weights of {names}.\n".encode())
    with checksummed(out):
        save_weights(out / WEIGHTS, weights)
    return load_folder(out)


def _alike(one: ModelFolder, other: ModelFolder) -> bool:
    """Whether the same weights have the same meaning in both."""
    tables = ("features", "network", "encoder", "decoder")
    return (
        all(getattr(one.config, table) == getattr(other.config, table) for table in tables)
        and one.vocabulary.tokens == other.vocabulary.tokens
        and all(np.array_equal(a, b) for a, b in zip(one.statistics, other.statistics, strict=True))
    )
