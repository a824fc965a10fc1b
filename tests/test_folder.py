"""Model folders: they load by their path alone, and whatever is missing or damaged is told in one sentence."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headsync import folder
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig
from headsync.errors import ModelError, TrainingError
from headsync.features import NUM_MEL, Statistics
from headsync.folder import CONFIG, STATISTICS, VOCABULARY, WEIGHTS, find, load_folder, save_folder, shipped
from headsync.nn.model import Model
from headsync.recognizer import Recognizer
from headsync.tokens import Vocabulary

TINY = Config(
    network=NetworkConfig(width=8, heads=2, feedforward=8, kernels=2),
    encoder=EncoderConfig(layers=1, left_frames=2, centre_frames=2, right_frames=1),
    decoder=DecoderConfig(layers=1),
)
WORDS = Vocabulary("words", ("one", "two"))
FLAT = Statistics(np.zeros(NUM_MEL, np.float32), np.ones(NUM_MEL, np.float32))


@pytest.fixture(scope="session")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "intact"
    save_folder(path, TINY, WORDS, FLAT)
    torch.manual_seed(1)
    save_file(Model(TINY, NUM_MEL, WORDS.size).state_dict(), path / WEIGHTS)
    return path


@pytest.fixture
def model(intact: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(intact, tmp_path / "model"))


def complaint(model: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Recognizer.load(model)
    message = str(caught.value)
    assert message.startswith(str(model))
    assert "\n" not in message
    return message


def test_a_folder_comes_back_as_it_was_saved(model: Path) -> None:
    loaded = load_folder(model)
    assert (loaded.path, loaded.config, loaded.vocabulary) == (model, TINY, WORDS)
    np.testing.assert_array_equal(loaded.statistics, FLAT)
    assert loaded.weights == model / WEIGHTS


def test_a_folder_that_was_moved_loads_by_its_path_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    finals = Recognizer.load("moved").transcribe(np.random.default_rng(1).normal(size=16_000), 16_000)
    assert {word for final in finals for word in final.text.split()} <= set(WORDS.tokens)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, VOCABULARY, STATISTICS])
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    assert f"{name} is missing" in complaint(model)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content.rstrip()[:-1],
    "empty": lambda content: b"",
    "noise": lambda content: np.random.default_rng(1).bytes(len(content)),
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [WEIGHTS, VOCABULARY, STATISTICS])
def test_a_damaged_file_is_named(model: Path, name: str, damage: str) -> None:
    (model / name).write_bytes(DAMAGES[damage]((model / name).read_bytes()))
    assert complaint(model).startswith(f"{model / name}: ")


@pytest.mark.parametrize("damage", ["noise", "zeros"])
def test_a_config_that_is_no_text_is_told(model: Path, damage: str) -> None:
    (model / CONFIG).write_bytes(DAMAGES[damage]((model / CONFIG).read_bytes()))
    assert complaint(model).startswith(f"{model / CONFIG}: damaged (")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("heads =", "haeds =", 'network.haeds is not a setting; did you mean "heads"?'),
        ("heads = 2", 'heads = "two"', "network.heads = 'two' must be a whole number"),
        ("heads = 2", "heads = 3", "network.width = 8 must be a multiple of twice heads = 3"),
        ("heads = 2", "heads = ", "Invalid value"),
    ],
)
def test_a_config_that_does_not_make_sense_is_told_with_the_reason(
    model: Path, before: str, after: str, expected: str
) -> None:
    text = (model / CONFIG).read_text()
    (model / CONFIG).write_text(text.replace(before, after, 1))
    assert expected in complaint(model)


@pytest.mark.parametrize("change", [{"width": 16}, {"feedforward": 12}, {"kernels": 3}])
def test_weights_of_another_size_are_told(model: Path, change: dict[str, int]) -> None:
    save_folder(model, replace(TINY, network=replace(TINY.network, **change)), WORDS, FLAT)
    assert f"{WEIGHTS}: damaged or of another model" in complaint(model)


def test_weights_of_another_vocabulary_are_told(model: Path) -> None:
    save_folder(model, TINY, Vocabulary("words", ("one", "two", "three")), FLAT)
    assert f"{WEIGHTS}: damaged or of another model" in complaint(model)


def test_weights_that_lack_or_exceed_the_network_are_told(model: Path) -> None:
    weights = load_file(model / WEIGHTS)
    save_file({name: tensor for name, tensor in weights.items() if name != "ctc.bias"}, model / WEIGHTS)
    assert "damaged or of another model" in complaint(model)
    save_file({**weights, "ctc.more": torch.zeros(1)}, model / WEIGHTS)
    assert "damaged or of another model" in complaint(model)


def test_statistics_of_another_number_of_features_are_told(model: Path) -> None:
    few = Statistics(np.zeros(NUM_MEL - 1, np.float32), np.ones(NUM_MEL - 1, np.float32))
    save_folder(model, TINY, WORDS, few)
    assert "80 numbers each" in complaint(model)


def test_the_model_card_is_not_needed_to_recognise(model: Path) -> None:
    assert not (model / folder.CARD).exists()
    Recognizer.load(model)


def test_a_folder_half_written_over_keeps_its_old_files(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(TrainingError, match=r"config\.toml: cannot be written \(No space left on device\)"):
        save_folder(model, replace(TINY, decoder=DecoderConfig(layers=2)), WORDS, FLAT)
    assert load_folder(model).config == TINY
    assert not list(model.glob("*.unfinished"))


@pytest.fixture
def models(intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two models and something that is none."""
    package = tmp_path / "package"
    for name in ("tiny-en", folder.DEFAULT):
        shutil.copytree(intact, package / name)
    (package / "notes").mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(folder, "SHIPPED", package)
    return package


def test_shipped_models_are_found_by_name(models: Path) -> None:
    assert shipped() == {name: models / name for name in sorted(("tiny-en", folder.DEFAULT))}
    assert find("tiny-en") == models / "tiny-en"
    assert find() == find(None) == models / folder.DEFAULT


def test_a_folder_is_found_by_its_path(models: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(model) == find(str(model)) == model
    monkeypatch.chdir(model.parent)
    assert find("model") == Path("model")


def test_what_is_neither_is_told_with_the_names_there_are(models: Path, model: Path) -> None:
    for wrong in ("tiny-de", model / "none", model / WEIGHTS):
        with pytest.raises(ModelError, match=f"neither a folder nor a shipped model; .*: {folder.DEFAULT}, tiny-en$"):
            find(wrong)


def test_a_package_without_models_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SHIPPED", tmp_path / "nowhere")
    assert shipped() == {}
    with pytest.raises(ModelError, match=r"these are shipped: none$"):
        find()
