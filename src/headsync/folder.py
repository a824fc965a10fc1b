"""A model is a folder that loads by its path alone.

    weights.safetensors      the network, in single precision or half
    config.toml              its sizes and how it is searched
    vocabulary.json          what it can write
    statistics.safetensors   mean and deviation of its features
    README.md                the model card
    lm/                      a language model to search with, if there is one
    graphs.json, *.onnx      the network without its weights, to run without PyTorch, if it has been exported

A language model is such a folder too, without statistics, and its config.toml says `kind = "lm"`.
Models that come with the package are folders of `headsync/models/`, found by their names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from headsync.config import Config
from headsync.errors import ConfigError, ModelError
from headsync.features import Statistics
from headsync.recipe import build, dump
from headsync.tokens import Vocabulary
from headsync.writing import write_atomically

WEIGHTS, CONFIG, VOCABULARY, STATISTICS, CARD = (
    "weights.safetensors",
    "config.toml",
    "vocabulary.json",
    "statistics.safetensors",
    "README.md",
)
GRAPHS = "graphs.json"  # of a model that has been exported: what its graphs are of
LANGUAGE_MODEL = "lm"  # a folder or file inside a model folder, loaded where it has weight
SHIPPED = Path(__file__).parent / "models"
DEFAULT = "digits-en"


@dataclass(frozen=True)
class ModelFolder:
    """All of a model but its network, which an engine loads from `weights`."""

    path: Path
    config: Config
    vocabulary: Vocabulary
    statistics: Statistics

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS


@dataclass(frozen=True)
class LanguageFolder:
    """A language model, all of it but the network."""

    path: Path
    config: Config
    vocabulary: Vocabulary

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS


def shipped() -> dict[str, Path]:
    """The models that come with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{CONFIG}"))}


def find(name_or_folder: str | Path | None = None) -> Path:
    """Where a model is: None is the default one, a name a shipped one, anything else a folder."""
    models = shipped()
    name = DEFAULT if name_or_folder is None else str(name_or_folder)
    if name in models:
        return models[name]
    path = Path(name)
    if path.is_dir():
        return path
    raise ModelError(f"{name}: neither a folder nor a shipped model; these are shipped: {', '.join(models) or 'none'}")


def load_folder(path: Path) -> ModelFolder:
    """Read a model folder, all of it but the network."""
    config = _config(path, "recogniser")
    _check_files(path, (WEIGHTS, VOCABULARY, STATISTICS))
    vocabulary = Vocabulary.load(path / VOCABULARY)
    return ModelFolder(path, config, vocabulary, Statistics.load(path / STATISTICS, config.features.columns))


def load_weights(path: Path) -> dict[str, NDArray[Any]]:
    """The weights of a network by name; what is kept in half precision is computed with in single precision."""
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error}); copy or train it again") from None
    return {name: each.astype(np.float32) if each.dtype == np.float16 else each for name, each in found.items()}


def load_language_folder(path: Path) -> LanguageFolder:
    """Read the folder of a language model, all of it but the network."""
    config = _config(path, "lm")
    _check_files(path, (WEIGHTS, VOCABULARY))
    return LanguageFolder(path, config, Vocabulary.load(path / VOCABULARY))


def _config(path: Path, kind: str) -> Config:
    _check_files(path, (CONFIG,))
    try:
        tree = tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
        config = build(Config, tree, str(path / CONFIG))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, ConfigError) as error:
        raise ModelError(f"{path / CONFIG}: damaged ({error}); copy or train the model again") from None
    if config.kind != kind:
        raise ModelError(f"{path}: this is {_SPOKEN[config.kind]}, where {_SPOKEN[kind]} is needed")
    return config


_SPOKEN = {"recogniser": "a recogniser", "lm": "a language model"}


def _check_files(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if not (path / name).is_file():
            raise ModelError(f"{path}: {name} is missing, so this is not a whole model folder; copy or train it again")


def save_folder(path: Path, config: Config, vocabulary: Vocabulary, statistics: Statistics) -> None:
    """Write all but the network, whose file the caller writes last: a folder with weights is a whole one."""
    save_language_folder(path, config, vocabulary)
    statistics.save(path / STATISTICS)


def save_language_folder(path: Path, config: Config, vocabulary: Vocabulary) -> None:
    """The same for a language model, which has no features and so no statistics of them."""
    path.mkdir(parents=True, exist_ok=True)
    write_atomically(path / CONFIG, dump(config).encode())
    vocabulary.save(path / VOCABULARY)
