"""The recipes that come along: they parse, build their networks, and the toy one really learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import ROOT
from headsync.attention import MECHANISMS
from headsync.corpora import toy
from headsync.corpora.manifest import read_manifest
from headsync.evaluation.evaluate import evaluate
from headsync.nn.model import Model
from headsync.recipe import load_config
from headsync.recognizer import Recognizer
from headsync.training import train
from headsync.training.bucketing import FRAMES_PER_SECOND

FOLDER = ROOT / "recipes"
RECIPES = sorted(
    path for path in FOLDER.glob("**/*.toml") if path.parent.name != "tables" and load_config(path).kind == "recogniser"
)
CLASSES = {"words": 12, "characters": 52, "bpe": 5002}  # with the blank and the end


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_builds_its_network(path: Path) -> None:
    config = load_config(path)
    with torch.device("meta"):  # sizes without numbers: some of these networks are large
        model = Model(config, config.columns, CLASSES[config.data.tokens])
    assert len(model.encoder.layers) == config.encoder.layers
    assert len(model.decoder.layers) == config.decoder.layers
    mechanism = model.decoder.layers[0].cross.mechanism
    assert type(mechanism) is MECHANISMS[config.decoder.attention]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_its_data_and_folder(path: Path) -> None:
    config = load_config(path)
    assert config.data.train
    assert config.data.dev
    assert Path(config.training.folder).name in (path.stem, f"{path.parent.name}-{path.stem}")


@pytest.mark.parametrize(("task", "width", "heads", "epochs", "factor", "ctc", "beam", "lm_weight"), [
    ("wsj", 256, 4, 100, 10.0, 0.3, 10, 1.0),
    ("aishell1", 256, 4, 50, 1.0, 0.5, 10, 0.7),
    ("librispeech", 512, 8, 100, 10.0, 0.4, 60, 0.6),
])  # fmt: skip
def test_the_recipes_of_the_papers_tasks_have_its_figures(
    task: str, width: int, heads: int, epochs: int, factor: float, ctc: float, beam: int, lm_weight: float
) -> None:
    for path in sorted((FOLDER / task).glob("*.toml")):
        config = load_config(path)
        network, training, decoding = config.network, config.training, config.decoding
        assert (network.width, network.heads, network.feedforward, network.kernels) == (width, heads, 2048, 256)
        assert (training.epochs, training.noam_factor, training.warmup_updates) == (epochs, factor, 25_000)
        assert (training.ctc_weight, training.label_smoothing, network.dropout) == (0.3, 0.1, 0.1)
        assert (decoding.ctc_weight, decoding.beam, decoding.lm_weight) == (ctc, beam, lm_weight)
        assert (decoding.lookahead_frames, decoding.policy, config.endpoint.whole_recording) == (16, "published", True)
        assert config.features.pitch
        layers = (12, 6) if path.stem.endswith("12-6") else (6, 12)
        assert (config.encoder.layers, config.decoder.layers) == layers


@pytest.mark.parametrize("task", ["wsj", "aishell1", "librispeech"])
def test_the_paper_recipes_have_no_bias_and_halt_from_the_first_update_and_our_variant_extends_them(task: str) -> None:
    for name in ("hs-dacs", "dacs"):
        config = load_config(FOLDER / task / f"{name}.toml")
        assert (config.decoder.energy_bias, config.training.untruncated_updates) == (None, 0)
        assert (config.encoder.positions, config.decoder.frame_positions) == ("sinusoids", False)
    biased = load_config(FOLDER / task / "hs-dacs-biased.toml")
    assert (biased.decoder.energy_bias, biased.training.untruncated_updates) == (-3.0, 25_000)


@pytest.mark.parametrize(
    ("task", "average", "augmentation"),
    [("wsj", 10, (0, 0, 0)), ("aishell1", 10, (0, 0, 0)), ("librispeech", 5, (30, 40, 5))],
)
def test_the_recipes_have_the_settings_of_those_the_paper_builds_on(
    task: str, average: int, augmentation: tuple[int, int, int]
) -> None:
    config = load_config(FOLDER / task / "hs-dacs.toml")
    training = config.training
    assert (training.average, training.average_of, training.loss_per) == (average, "last", "utterance")
    masks = training.frequency_mask_bins, training.time_mask_frames, training.time_warp_frames
    assert masks == augmentation
    assert training.patience == (3 if task == "wsj" else 0)


@pytest.mark.parametrize(
    ("task", "utterances", "hours", "size"),
    [("wsj", 37_416, 81.3, 32), ("aishell1", 120_098, 150.9, 64), ("librispeech", 281_241, 960.9, 160)],
)
def test_batches_have_about_as_many_utterances_as_the_headers_of_the_recipes_say(
    task: str, utterances: int, hours: float, size: int
) -> None:
    """By the mean duration of the training set; speeds of 0.9, 1.0 and 1.1 hardly change it."""
    path = FOLDER / task / "hs-dacs.toml"
    frames = hours * 3600 * FRAMES_PER_SECOND / utterances
    assert load_config(path).training.batch_frames / frames == pytest.approx(size, rel=0.05)
    assert f"batches of about {size} utterances" in path.read_text()


def test_every_system_of_the_papers_tables_has_a_recipe() -> None:
    names = {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.toml")}
    tasks = ("wsj", "aishell1", "librispeech")
    assert {f"{task}/{system}" for task in tasks for system in ("dacs", "hs-dacs")} <= names
    assert {"librispeech/offline", "librispeech/hs-dacs-12-6"} <= names
    assert {f"lm/{task}" for task in tasks} <= names


@pytest.mark.slow
def test_the_toy_recipe_learns_to_stream(tmp_path: Path) -> None:
    toy.prepare(tmp_path / "data")
    overrides = [f"data.{part}={tmp_path}/data/{part}.jsonl" for part in ("train", "dev")]
    model = train(ROOT / "recipes" / "toy" / "toy.toml", [*overrides, f"training.folder={tmp_path}/run"])
    report = evaluate(Recognizer.load(model), read_manifest(tmp_path / "data" / "test.jsonl"))
    assert report.counts.words > 100
    assert report.error_rate is not None
    assert report.error_rate < 0.05, [o.to_dict() for o in report.outcomes if o.counts.errors]
