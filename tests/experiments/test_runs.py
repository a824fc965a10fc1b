"""Runs of a comparison, with a tiny network on the toy corpus: training, measuring and tables."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from arpa_files import random_table, write_arpa
from headsync.corpora import toy
from headsync.corpora.manifest import read_manifest, write_manifest
from headsync.errors import ConfigError, DataError, TrainingError
from headsync.experiments.figures import draw_systems
from headsync.experiments.plan import Comparison, read_plan
from headsync.experiments.report import report
from headsync.experiments.runs import Runs, run_only
from headsync.model_folder import CONFIG, WEIGHTS
from headsync.recipe import load_config
from headsync.training.forced_alignment import align_words
from headsync.training.trainer import Trainer
from training.runs import Interrupts
from training.tiny import TINY

RECIPE = TINY + "[decoding]\nctc_weight = 0.5\n"
PLAN = """
recipe = "recipe.toml"
folder = "{folder}"
limit = 2
tests = {{ test = "{corpus}/test.jsonl" }}
[encoder]
"training.ctc_weight" = 1
[[system]]
name = "DACS"
seeds = [1, 2]
settings = {{ "decoder.attention" = "dacs" }}
[[system]]
name = "HS-DACS"
settings = {{ "decoder.attention" = "hs-dacs" }}
[sweep]
systems = ["HS-DACS"]
shares = [1.0, 0.5]
[[choice]]
name = "M = 2"
of = "HS-DACS"
decoding = {{ lookahead_frames = 2 }}
[[choice]]
name = "one head"
of = "HS-DACS"
settings = {{ "decoder.heads" = 1 }}
[[choice]]
name = "with a language model"
of = "HS-DACS"
decoding = {{ lm = "{folder}/words.arpa", lm_weight = 0.5 }}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("comparison")
    toy.prepare(folder / "toy", strings=toy.Counts(train=10, dev=2, test=3))
    (folder / "recipe.toml").write_text(RECIPE.format(corpus=folder / "toy"))
    (folder / "runs").mkdir()
    write_arpa(folder / "runs" / "words.arpa", random_table(tuple(toy.WORDS), orders=2, seed=1))
    (folder / "plan.toml").write_text(PLAN.format(corpus=folder / "toy", folder=folder / "runs"))
    return read_plan(folder / "plan.toml")


@pytest.fixture(scope="module")
def said(plan: Comparison) -> list[str]:
    """The messages of the first run."""
    lines: list[str] = []
    report(plan, Runs(plan, lines.append))
    return [line for line in lines if line.startswith(("training", "measuring"))]


def test_every_system_and_choice_is_trained_and_measured_once(plan: Comparison, said: list[str]) -> None:
    trained = [line for line in said if line.startswith("training")]
    assert sorted(trained) == sorted(
        f"training {name}"
        for name in ("DACS, seed 1", "DACS, seed 2", "HS-DACS, seed 1", "encoder, seed 1", "one head, seed 1")
    )
    measured = [line for line in said if " on test" in line]
    assert len(measured) == len(set(measured)) + 1 == 7  # two seeds of DACS, HS-DACS, half its threshold, three choices
    assert "measuring HS-DACS on test threshold 0.5" in measured


def test_finished_runs_are_not_repeated(plan: Comparison, said: list[str]) -> None:
    again: list[str] = []
    report(plan, Runs(plan, again.append))
    assert said
    assert again == []


def test_a_result_of_another_manifest_is_not_reused(plan: Comparison, said: list[str]) -> None:
    again: list[str] = []
    manifest = plan.tests["test"]
    os.utime(manifest, ns=(1, manifest.stat().st_mtime_ns + 1))
    run_only(plan, Runs(plan, again.append), ["HS-DACS"])
    assert again == ["measuring HS-DACS on test"]
    with pytest.raises(ConfigError, match='"ACS" is not the name of a system; known here: DACS, HS-DACS'):
        run_only(plan, Runs(plan, again.append), ["ACS"])


def test_the_tables_contain_the_results(plan: Comparison, said: list[str], tmp_path: Path) -> None:
    tables, _ = report(plan, Runs(plan, lambda _: None))
    systems, sweep, choices = tables
    result = json.loads((plan.folder / "HS-DACS" / "seed-1" / "test.json").read_text())
    assert systems.rows[-1][:2] == ("HS-DACS", f"{result['error_rate']:.2%}")
    assert len(systems.rows[0][3].split(", ")) == 2  # an error rate for each seed of DACS
    assert any(note.startswith("HS-DACS against DACS:") for note in systems.notes)
    assert [row[:2] for row in sweep.rows] == [("HS-DACS", "1"), ("HS-DACS", "0.5")]
    assert [row[0] for row in choices.rows] == ["HS-DACS as above", "M = 2", "one head", "with a language model"]
    draw_systems(systems, tmp_path / "systems.png")
    assert (tmp_path / "systems.png").stat().st_size > 5_000


def test_forced_alignment_places_every_word_in_order(plan: Comparison, said: list[str]) -> None:
    utterances = read_manifest(plan.tests["test"])
    placed = align_words(plan.folder / "encoder" / "seed-1" / "model", utterances)
    assert placed
    for utterance in utterances:
        words = placed.get(utterance.id, ())
        assert len(words) in (0, len(utterance.text.split()))
        edges = [edge for word in words for edge in word]
        assert edges == sorted(edges)
        assert not edges or 0 <= edges[0] < edges[-1] <= utterance.seconds


Change = tuple[str, str]
Changed = Callable[..., Comparison]


@pytest.fixture
def changed(plan: Comparison, said: list[str], tmp_path: Path) -> Changed:
    """The comparison in another folder, with all of its runs, and a recipe or a plan in which something is replaced."""
    home, folder = plan.folder.parent, tmp_path / "runs"
    shutil.copytree(plan.folder, folder)

    def write(recipe: Change = ("", ""), plan: Change = ("", "")) -> Comparison:
        before = {"recipe": RECIPE.format(corpus=home / "toy"), "plan": PLAN.format(corpus=home / "toy", folder=folder)}
        for name, change in (("recipe", recipe), ("plan", plan)):
            assert change[0] in before[name]
            (tmp_path / f"{name}.toml").write_text(before[name].replace(*change, 1))
        return read_plan(tmp_path / "plan.toml")

    return write


def done(plan: Comparison, *names: str) -> list[str]:
    """The messages of training and measuring, unless this has been done."""
    lines: list[str] = []
    run_only(plan, Runs(plan, lines.append), names or ("DACS", "HS-DACS", "M = 2", "one head"))
    return lines


@pytest.mark.parametrize(
    "recipe",
    [("", ""), ("[training]", "[training]\nlabel_smoothing = 0.1\naccumulate = 2"), ("workers = 0", "workers = 1")],
)
def test_runs_are_reused_if_no_relevant_setting_changed(changed: Changed, recipe: Change) -> None:
    assert done(changed(recipe)) == []


@pytest.mark.parametrize(
    ("recipe", "difference"),
    [
        (("feedforward = 32", "feedforward = 64"), "network.feedforward was 32 and is now 64"),
        (("noam_factor = 0.5", "noam_factor = 0.4"), "training.noam_factor was 0.5 and is now 0.4"),
        (("train.jsonl", "dev.jsonl"), "data.train was '.*/train.jsonl' and is now '.*/dev.jsonl'"),
        (("epochs = 2", "epochs = 1"), "training.epochs was 2 and is now 1"),
        (("epochs = 2", "epochs = 2\npatience = 1"), "training.patience was 0 and is now 1"),
    ],
)
def test_runs_of_another_recipe_are_refused(changed: Changed, recipe: Change, difference: str) -> None:
    plan, lines = changed(recipe), list[str]()
    runs = "DACS/seed-1: was trained with other settings"
    with pytest.raises(
        TrainingError, match=rf"{plan.folder}/{runs} \({difference}\); set another folder for the comparison"
    ):
        report(plan, Runs(plan, lines.append))
    assert lines == []


def test_a_changed_choice_is_refused_before_training(changed: Changed) -> None:
    plan, lines = changed(plan=('"decoder.heads" = 1', '"decoder.heads" = 2')), list[str]()
    shutil.rmtree(plan.folder / "DACS")
    with pytest.raises(TrainingError, match=r"one head/seed-1: .*decoder.heads was 1 and is now 2"):
        report(plan, Runs(plan, lines.append))
    assert lines == []


def test_changed_decoding_settings_are_measured_without_training(changed: Changed) -> None:
    plan = changed(("ctc_weight = 0.5", "ctc_weight = 0.4"))
    model = plan.folder / "HS-DACS" / "seed-1" / "model"
    weights = (model / WEIGHTS).read_bytes()
    assert done(plan, "HS-DACS") == [
        f"{model}: decoding settings updated from the recipe",
        "measuring HS-DACS on test",
    ]
    assert json.loads((model.parent / "test.json").read_text())["of"]["decoding"] == {"ctc_weight": 0.4}
    assert load_config(model / CONFIG).decoding.ctc_weight == 0.4
    assert (model / WEIGHTS).read_bytes() == weights
    assert done(plan, "HS-DACS") == []


def test_calibrated_confidences_are_kept(changed: Changed) -> None:
    config = changed().folder / "HS-DACS" / "seed-1" / "model" / CONFIG
    config.write_text(config.read_text().replace("confidence_scale = 1.0", "confidence_scale = 2.0"))
    assert done(changed(), "HS-DACS") == []
    done(changed(("ctc_weight = 0.5", "ctc_weight = 0.4")), "HS-DACS")
    assert load_config(config).decoding.confidence_scale == 2


def test_a_run_with_more_epochs_is_continued(changed: Changed, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = changed()
    shutil.rmtree(plan.folder)
    done(plan, "HS-DACS")
    assert done(plan, "HS-DACS") == []
    longer = changed(plan=('"hs-dacs"', '"hs-dacs", "training.epochs" = 3'))
    with monkeypatch.context() as patch:
        interrupts = Interrupts(Trainer.finish_epoch, at=1, after=False)
        patch.setattr(Trainer, "finish_epoch", lambda *arguments: interrupts(*arguments))
        with pytest.raises(KeyboardInterrupt):
            done(longer, "HS-DACS")
    lines = done(longer, "HS-DACS")
    assert lines[0] == "training HS-DACS, seed 1"
    assert any(line.startswith("resuming after update") for line in lines)
    assert lines[-1] == "measuring HS-DACS on test"
    assert done(longer, "HS-DACS") == []


def test_an_encoder_in_use_is_not_trained_again(changed: Changed) -> None:
    longer = changed(plan=('"training.ctc_weight" = 1', '"training.ctc_weight" = 1\n"training.epochs" = 3'))
    with pytest.raises(TrainingError, match="DACS/seed-1: was trained from an encoder that is missing"):
        done(longer, "HS-DACS")
    shutil.rmtree(longer.folder / "encoder")
    with pytest.raises(TrainingError, match="DACS/seed-1: was trained from an encoder that is missing"):
        done(changed(), "HS-DACS")
    shutil.rmtree(longer.folder)
    assert done(changed(), "M = 2")[0] == "training encoder, seed 1"
    assert not (longer.folder / "M = 2").exists()  # it has the model of HS-DACS


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        (("test.jsonl", "none.jsonl"), DataError, "none.jsonl: no such manifest"),
        (("words.arpa", "none.arpa"), ConfigError, '"with a language model": lm = .*none.arpa.*no such language model'),
    ],
)
def test_missing_files_are_errors_before_training(
    changed: Changed, change: Change, error: type[Exception], complaint: str
) -> None:
    plan, lines = changed(plan=change), list[str]()
    shutil.rmtree(plan.folder)
    with pytest.raises(error, match=complaint):
        report(plan, Runs(plan, lines.append))
    assert lines == []


def test_a_word_outside_the_vocabulary_is_an_error_with_the_manifest(
    changed: Changed, plan: Comparison, tmp_path: Path
) -> None:
    first, *_ = read_manifest(plan.tests["test"])
    write_manifest(tmp_path / "strange.jsonl", [replace(first, text="ba xylophone")])
    other = changed(plan=(str(plan.tests["test"]), str(tmp_path / "strange.jsonl")))
    with pytest.raises(DataError, match=r"strange\.jsonl: .*'xylophone'"):
        done(other, "HS-DACS")
