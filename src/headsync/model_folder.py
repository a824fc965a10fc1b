"""A model is a folder that loads by its path alone.

    weights.safetensors      the network, in single precision or half
    config.toml              its recipe: sizes, decoding and endpointing
    vocabulary.json          its tokens
    statistics.safetensors   mean and deviation of its features
    README.md                the model card
    lm/                      a language model for the search (optional)
    graphs.json, *.onnx      graphs of the network without weights, to run without PyTorch (optional)
    SHA256SUMS               checksums of all files but config.toml and README.md, in the format of sha256sum

A language model is also a folder, without statistics and with `kind = "lm"` in its config.toml. Shipped models are the
folders of `headsync/models/` and are found by name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from headsync._atomic_write import write_atomically
from headsync._parse import parse_toml
from headsync.config import Config
from headsync.errors import ConfigError, ModelError
from headsync.frontend.features import Statistics
from headsync.recipe import build, dump
from headsync.text.vocabulary import Vocabulary

WEIGHTS, VOCABULARY, STATISTICS = "weights.safetensors", "vocabulary.json", "statistics.safetensors"
CONFIG, CARD = "config.toml", "README.md"
GRAPHS = "graphs.json"  # describes the graphs of an exported model
CHECKSUMS = "SHA256SUMS"
EDITABLE = (CONFIG, CARD)  # without a checksum
LANGUAGE_MODEL = "lm"  # a folder or file inside a model folder, loaded if its weight is above 0
SHIPPED = Path(__file__).parent / "models"
DEFAULT = "english"

Weights = dict[str, NDArray[Any]]  # by parameter name


@dataclass(frozen=True)
class LanguageFolder:
    """A language model without its network, which an engine loads from `weights`."""

    path: Path
    config: Config
    vocabulary: Vocabulary

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS


@dataclass(frozen=True)
class ModelFolder(LanguageFolder):
    """A recogniser without its network."""

    statistics: Statistics


class NamedModel(NamedTuple):
    """A model folder and the name that users and clients use for it."""

    name: str
    path: Path


def shipped() -> dict[str, Path]:
    """The models that come with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{CONFIG}"))}


def cache_folder() -> Path:
    if given := os.environ.get("HEADSYNC_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headsync" / "models"


def cached() -> dict[str, Path]:
    """The downloaded models by name."""
    folders = sorted(path.parent for path in cache_folder().glob(f"*/{CONFIG}"))
    return {folder.name: folder for folder in folders if not folder.name.endswith(".download")}


def find(name_or_folder: str | Path | None = None) -> Path:
    """The folder of a model; accepts what `find_named` accepts."""
    return find_named(name_or_folder).path


def find_named(model: str | Path | None = None) -> NamedModel:
    """The name and folder of a model.

    `model` is a shipped model's name, a folder, or `NAME=FOLDER`, which gives the folder another name. None is the
    default model. A folder without a name has that of its last path component.
    """
    name, equals, folder = str(model).partition("=")
    if equals and name and "/" not in name and not Path(str(model)).is_dir():
        return NamedModel(name, _find_folder(folder))
    path = _find_folder(DEFAULT if model is None else str(model))
    return NamedModel(path.resolve().name, path)


def _find_folder(name: str) -> Path:
    models = shipped()
    if name in models:
        return models[name]
    path = Path(name)
    if name and path.is_dir():
        return path
    known = {**cached(), **models}
    if name in known:
        return known[name]
    raise ModelError(
        f"{name or '(empty)'}: neither a folder nor the name of a model; known models: {', '.join(known) or 'none'}"
    )


def load_folder(path: Path) -> ModelFolder:
    """Read a model folder, except the network."""
    config = _config(path, "recogniser")
    _check_files(path, (WEIGHTS, VOCABULARY, STATISTICS))
    verify_checksums(path)
    vocabulary = Vocabulary.load(path / VOCABULARY)
    return ModelFolder(path, config, vocabulary, Statistics.load(path / STATISTICS, config.columns))


def load_weights(path: Path) -> Weights:
    """The weights of a network by name; half precision is converted to single precision."""
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error}); copy or train it again") from None
    return {name: each.astype(np.float32) if each.dtype == np.float16 else each for name, each in found.items()}


def load_language_folder(path: Path) -> LanguageFolder:
    """Read the folder of a language model, except the network."""
    config = _config(path, "lm")
    _check_files(path, (WEIGHTS, VOCABULARY))
    verify_checksums(path)
    return LanguageFolder(path, config, Vocabulary.load(path / VOCABULARY))


def _config(path: Path, kind: str) -> Config:
    _check_files(path, (CONFIG,))
    try:
        tree = parse_toml((path / CONFIG).read_text(encoding="utf-8"))
        config = build(Config, tree, str(path / CONFIG))
    except (OSError, ValueError, ConfigError) as error:
        raise ModelError(f"{path / CONFIG}: damaged ({error}); copy or train the model again") from None
    if config.kind != kind:
        raise ModelError(f"{path}: expected {_DESCRIPTIONS[kind]}, found {_DESCRIPTIONS[config.kind]}")
    return config


_DESCRIPTIONS = {"recogniser": "a recogniser", "lm": "a language model"}


def _check_files(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if not (path / name).is_file():
            raise ModelError(f"{path}: not a complete model folder: {name} is missing; copy or train it again")


@contextmanager
def checksummed(path: Path) -> Iterator[None]:
    """Write files of a model folder and then their checksums; after an interruption there are no checksums."""
    (path / CHECKSUMS).unlink(missing_ok=True)
    yield
    names = sorted(file.name for file in path.iterdir() if file.is_file() and file.name not in EDITABLE)
    lines = [f"{sha256(path / name)}  {name}\n" for name in names]
    write_atomically(path / CHECKSUMS, "".join(lines).encode())


def verify_checksums(path: Path) -> None:
    """Compare the files of a model folder with its checksums, if it has any."""
    if not (path / CHECKSUMS).is_file():
        return
    names = {file.name for file in path.iterdir() if file.is_file()}
    for line in (path / CHECKSUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        if name not in names:
            raise ModelError(f"{path}: {name or CHECKSUMS} is missing or damaged; copy or export the model again")
        if sha256(path / name) != expected:
            raise ModelError(
                f"{path / name}: damaged: its checksum differs from the one in {CHECKSUMS}; copy or train the model "
                f"again, or delete {CHECKSUMS} if you changed the file on purpose"
            )


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); copy the model again") from None


def save_folder(path: Path, config: Config, vocabulary: Vocabulary, statistics: Statistics) -> None:
    """Write all files except the network, which the caller writes last: a folder with weights is complete."""
    save_language_folder(path, config, vocabulary)
    statistics.save(path / STATISTICS)


def save_language_folder(path: Path, config: Config, vocabulary: Vocabulary) -> None:
    """The same for a language model, which has no feature statistics."""
    path.mkdir(parents=True, exist_ok=True)
    (path / CHECKSUMS).unlink(missing_ok=True)
    write_atomically(path / CONFIG, dump(config).encode())
    vocabulary.save(path / VOCABULARY)


def card_summary(folder: Path) -> str | None:
    """The first paragraph of a model card: what the model recognises."""
    _, text = _read_card(folder)
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith(("#", "|", "<!--"))), None)


def card_languages(folder: Path) -> list[str]:
    """The language codes in the front matter of a model card: `language: en`, `language: [en, de]` or a list."""
    front_matter, _ = _read_card(folder)
    found = re.search(r"^language:((?:[^\n]*)(?:\n *- .*)*)", front_matter, re.MULTILINE)
    return re.findall(r"[A-Za-z][\w-]*", found[1]) if found else []


def _read_card(folder: Path) -> tuple[str, str]:
    """Front matter and text; both empty without a readable card."""
    try:
        card = (folder / CARD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "", ""
    if found := re.match(r"---\n(.*?\n)---\n", card, re.DOTALL):
        return found[1], card[found.end() :]
    return "", card
