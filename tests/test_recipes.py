"""The recipes that come along: they parse, build their networks, and the toy one really learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ROOT
from headsync.attention import MECHANISMS
from headsync.config import load_config
from headsync.data import toy
from headsync.data.manifest import read_manifest
from headsync.features import NUM_MEL
from headsync.measure.evaluate import evaluate
from headsync.nn.model import Model
from headsync.recognizer import Recognizer
from headsync.train.loop import train

RECIPES = sorted(path for path in (ROOT / "recipes").glob("*.toml") if load_config(path).kind == "recogniser")
CLASSES = {"words": 12, "characters": 52}  # ten words or fifty characters, the blank and the end


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_builds_its_network(path: Path) -> None:
    config = load_config(path)
    model = Model(config, NUM_MEL, CLASSES[config.data.tokens])
    assert len(model.encoder.layers) == config.encoder.layers
    assert len(model.decoder.layers) == config.decoder.layers
    mechanism = model.decoder.layers[0].cross.mechanism
    assert type(mechanism) is MECHANISMS[config.decoder.attention]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_what_it_learns_from_and_where_it_goes(path: Path) -> None:
    config = load_config(path)
    assert config.data.train
    assert config.data.dev
    assert Path(config.training.folder).name == path.stem


def test_the_shipped_models_recipe_fits_into_the_package_and_looks_ahead_640_ms_at_most() -> None:
    config = load_config(ROOT / "recipes" / "digits.toml")
    bytes_of_weights = 4 * sum(p.numel() for p in Model(config, NUM_MEL, CLASSES["words"]).parameters())
    assert bytes_of_weights < 15_000_000
    assert config.decoding.lookahead_frames * 0.04 <= 0.64
    assert config.decoder.attention == "hs-dacs"


@pytest.mark.slow
def test_the_toy_recipe_learns_to_stream(tmp_path: Path) -> None:
    toy.prepare(tmp_path / "data")
    overrides = [f"data.{part}={tmp_path}/data/{part}.jsonl" for part in ("train", "dev")]
    model = train(ROOT / "recipes" / "toy.toml", [*overrides, f"training.folder={tmp_path}/run"])
    report = evaluate(Recognizer.load(model), read_manifest(tmp_path / "data" / "test.jsonl"))
    assert report.counts.words > 100
    assert report.error_rate is not None
    assert report.error_rate < 0.05, [o.to_dict() for o in report.outcomes if o.counts.errors]
