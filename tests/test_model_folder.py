"""Model folders load by their path alone; a missing or damaged file is an error of one sentence."""

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

from headsync import model_folder
from headsync.config import Config, DecoderConfig, EncoderConfig, NetworkConfig
from headsync.errors import ModelError, TrainingError
from headsync.frontend.features import NUM_MEL, Statistics
from headsync.model_folder import (
    CHECKSUMS,
    CONFIG,
    STATISTICS,
    VOCABULARY,
    WEIGHTS,
    checksummed,
    find,
    find_named,
    load_folder,
    save_folder,
    shipped,
)
from headsync.nn.model import Model
from headsync.recognizer import Recognizer
from headsync.text.vocabulary import Vocabulary

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


def test_a_saved_folder_loads_unchanged(model: Path) -> None:
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
def test_a_config_that_is_not_text_is_an_error(model: Path, damage: str) -> None:
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
def test_an_invalid_config_is_an_error_with_the_reason(model: Path, before: str, after: str, expected: str) -> None:
    text = (model / CONFIG).read_text()
    (model / CONFIG).write_text(text.replace(before, after, 1))
    assert expected in complaint(model)


@pytest.mark.parametrize("change", [{"width": 16}, {"feedforward": 12}, {"kernels": 3}])
def test_weights_of_another_size_are_an_error(model: Path, change: dict[str, int]) -> None:
    save_folder(model, replace(TINY, network=replace(TINY.network, **change)), WORDS, FLAT)
    assert f"{WEIGHTS}: damaged or of another model" in complaint(model)


def test_weights_of_another_vocabulary_are_an_error(model: Path) -> None:
    save_folder(model, TINY, Vocabulary("words", ("one", "two", "three")), FLAT)
    assert f"{WEIGHTS}: damaged or of another model" in complaint(model)


def test_missing_and_superfluous_weights_are_errors(model: Path) -> None:
    weights = load_file(model / WEIGHTS)
    save_file({name: tensor for name, tensor in weights.items() if name != "ctc.bias"}, model / WEIGHTS)
    assert "damaged or of another model" in complaint(model)
    save_file({**weights, "ctc.more": torch.zeros(1)}, model / WEIGHTS)
    assert "damaged or of another model" in complaint(model)


def test_statistics_of_another_number_of_features_are_an_error(model: Path) -> None:
    few = Statistics(np.zeros(NUM_MEL - 1, np.float32), np.ones(NUM_MEL - 1, np.float32))
    save_folder(model, TINY, WORDS, few)
    assert "80 numbers each" in complaint(model)


def test_the_model_card_is_not_needed_to_recognise(model: Path) -> None:
    assert not (model / model_folder.CARD).exists()
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
def sealed(model: Path) -> Path:
    """A folder with checksums."""
    with checksummed(model):
        pass
    return model


def test_checksums_cover_all_files_but_the_editable_ones(sealed: Path) -> None:
    (sealed / CONFIG).write_text((sealed / CONFIG).read_text() + "\n# a remark\n")
    (sealed / model_folder.CARD).write_text("A card.")
    load_folder(sealed)
    listed = [line.split("  ")[1] for line in (sealed / CHECKSUMS).read_text().splitlines()]
    assert listed == [STATISTICS, VOCABULARY, WEIGHTS]


@pytest.mark.parametrize("name", [STATISTICS, VOCABULARY, WEIGHTS])
def test_a_damaged_file_is_one_sentence(sealed: Path, name: str) -> None:
    content = bytearray((sealed / name).read_bytes())
    content[-9] ^= 1  # still readable
    (sealed / name).write_bytes(content)
    assert f"{name}: damaged: its checksum differs" in complaint(sealed)
    (sealed / CHECKSUMS).unlink()
    if name != VOCABULARY:
        load_folder(sealed)  # not detected without checksums


def test_damaged_checksums_are_one_sentence(sealed: Path) -> None:
    for damaged in ("nonsense\n", "0" * 64 + "  graphs.json\n", "\xff\xfe"):
        (sealed / CHECKSUMS).write_text(damaged)
        assert "is missing or damaged; copy or export the model again" in complaint(sealed)


def test_writing_to_a_folder_replaces_its_checksums(sealed: Path) -> None:
    save_folder(sealed, TINY, Vocabulary("words", ("three", "four")), FLAT)
    assert not (sealed / CHECKSUMS).exists()
    with pytest.raises(RuntimeError), checksummed(sealed):
        raise RuntimeError("interrupted")
    assert not (sealed / CHECKSUMS).exists()
    load_folder(sealed)


@pytest.fixture
def models(intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two models and something that is none."""
    package = tmp_path / "package"
    for name in ("tiny-en", model_folder.DEFAULT):
        shutil.copytree(intact, package / name)
    (package / "notes").mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(model_folder, "SHIPPED", package)
    return package


def test_shipped_models_are_found_by_name(models: Path) -> None:
    assert shipped() == {name: models / name for name in sorted(("tiny-en", model_folder.DEFAULT))}
    assert find("tiny-en") == models / "tiny-en"
    assert find() == find(None) == models / model_folder.DEFAULT


def test_a_folder_is_found_by_its_path(models: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(model) == find(str(model)) == model
    monkeypatch.chdir(model.parent)
    assert find("model") == Path("model")


def test_a_model_can_be_given_another_name(models: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_named() == (model_folder.DEFAULT, models / model_folder.DEFAULT)
    assert find_named("tiny-en") == ("tiny-en", models / "tiny-en")
    assert find_named(f"mine={model}") == ("mine", model)
    assert find_named("english=tiny-en") == ("english", models / "tiny-en")
    assert find(f"mine={model}") == model
    monkeypatch.chdir(model)
    assert find_named(".") == (model.name, Path())
    odd = model.parent / "beam=4"
    odd.mkdir()
    assert find_named(odd) == ("beam=4", odd)
    monkeypatch.chdir(odd.parent)
    assert find_named("beam=4") == ("beam=4", Path("beam=4"))  # an existing folder is never split
    for wrong in ("mine=", "mine=nowhere", f"={model}", f"{model}=tiny-en"):
        with pytest.raises(ModelError, match="neither a folder nor the name of a model"):
            find_named(wrong)


def test_an_unknown_model_is_an_error_with_the_known_names(models: Path, model: Path) -> None:
    for wrong in ("tiny-de", model / "none", model / WEIGHTS):
        with pytest.raises(
            ModelError, match=f"neither a folder nor the name of a model; .*: {model_folder.DEFAULT}, tiny-en$"
        ):
            find(wrong)


def test_a_package_without_models_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "SHIPPED", tmp_path / "nowhere")
    assert shipped() == {}
    with pytest.raises(ModelError, match=r"known models: none$"):
        find()
