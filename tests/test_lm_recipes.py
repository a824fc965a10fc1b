"""The recipes of language models: the paper's sizes, and tables of the other kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import ROOT
from headsync.config import Config, LanguageConfig
from headsync.errors import ConfigError
from headsync.nn.lstm_lm import LanguageNetwork
from headsync.recipe import dump, load_config

RECIPES = sorted((ROOT / "recipes" / "lm").glob("*.toml"))
TOKENS = {"characters": 30, "bpe": 5000, "words": 1000}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_builds_its_network(path: Path) -> None:
    config = load_config(path)
    with torch.device("meta"):  # sizes alone
        model = LanguageNetwork(config.language, TOKENS[config.data.tokens] + 2)
    assert (model.lstm.num_layers, model.lstm.hidden_size) == (config.language.layers, config.language.width)
    assert config.data.train
    assert Path(config.training.folder).name == f"lm-{path.stem}"


@pytest.mark.parametrize(
    ("name", "layers", "width", "tokens"),
    [("wsj", 1, 1000, "words"), ("aishell1", 2, 650, "characters"), ("librispeech", 4, 2048, "bpe")],
)
def test_the_papers_language_models(name: str, layers: int, width: int, tokens: str) -> None:
    config = load_config(ROOT / "recipes" / "lm" / f"{name}.toml")
    assert (config.language.layers, config.language.width, config.data.tokens) == (layers, width, tokens)


@pytest.mark.parametrize("name", ["wsj", "aishell1", "librispeech"])
def test_the_papers_language_models_are_trained_by_plain_sgd(name: str) -> None:
    config = load_config(ROOT / "recipes" / "lm" / f"{name}.toml")
    assert (config.language.optimiser, config.language.rate) == ("sgd", 1.0)
    assert (config.training.epochs, config.training.patience) == (20, 3)


def complaint(folder: Path, text: str) -> str:
    (folder / "r.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "r.toml")
    return str(caught.value).removeprefix(f"{folder / 'r.toml'}: ")


def test_a_table_of_the_other_kind_is_an_error(tmp_path: Path) -> None:
    assert complaint(tmp_path, "[language]\nlayers = 3") == 'language requires kind = "lm", not "recogniser"'
    assert complaint(tmp_path, 'kind = "lm"\n[encoder]\nlayers = 3') == 'encoder requires kind = "recogniser", not "lm"'
    assert complaint(tmp_path, 'kind = "language"') == 'kind = \'language\' is not known; it can be "recogniser", "lm"'


@pytest.mark.parametrize(
    "setting",
    [
        "layers = 0", "width = 0", "dropout = 1.0", "rate = 0.0", "batch_tokens = 0",
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named_with_its_table(tmp_path: Path, setting: str) -> None:
    assert complaint(tmp_path, f'kind = "lm"\n[language]\n{setting}').startswith(f"language.{setting} must be ")


def test_a_stored_language_model_has_only_its_own_tables(tmp_path: Path) -> None:
    config = Config(kind="lm", language=LanguageConfig(layers=3, optimiser="sgd", dropout=0.2))
    (tmp_path / "r.toml").write_text(dump(config))
    assert load_config(tmp_path / "r.toml") == config
    assert "[encoder]" not in dump(config)
    assert "[language]" not in dump(Config())
