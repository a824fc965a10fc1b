"""Runs of a comparison, with a tiny network on toy sounds: trained once, measured once, and told in tables."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from arpa_files import random_table, write_arpa
from headsync.compare.pictures import draw_systems
from headsync.compare.plan import Comparison, read_plan
from headsync.compare.report import report
from headsync.compare.runs import Runs, run_only
from headsync.data import toy
from headsync.data.manifest import read_manifest
from headsync.errors import ConfigError
from headsync.train.placing import placed_words
from train.tiny import TINY

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
    """What the first run of everything says it does."""
    told: list[str] = []
    report(plan, Runs(plan, told.append))
    return [line for line in told if line.startswith(("training", "measuring"))]


def test_every_system_and_choice_is_trained_and_measured_once(plan: Comparison, said: list[str]) -> None:
    trained = [line for line in said if line.startswith("training")]
    assert sorted(trained) == sorted(
        f"training {name}"
        for name in ("DACS, seed 1", "DACS, seed 2", "HS-DACS, seed 1", "encoder, seed 1", "one head, seed 1")
    )
    measured = [line for line in said if " on test" in line]
    assert len(measured) == len(set(measured)) + 1 == 7  # two seeds of DACS, HS-DACS, half its threshold, three choices
    assert "measuring HS-DACS on test threshold 0.5" in measured


def test_what_is_finished_is_not_repeated(plan: Comparison, said: list[str]) -> None:
    again: list[str] = []
    report(plan, Runs(plan, again.append))
    assert said
    assert again == []


def test_a_result_of_another_manifest_is_not_taken(plan: Comparison, said: list[str]) -> None:
    again: list[str] = []
    manifest = plan.tests["test"]
    os.utime(manifest, ns=(1, manifest.stat().st_mtime_ns + 1))
    run_only(plan, Runs(plan, again.append), ["HS-DACS"])
    assert again == ["measuring HS-DACS on test"]
    with pytest.raises(ConfigError, match='"ACS" is not the name of a system; there are DACS, HS-DACS'):
        run_only(plan, Runs(plan, again.append), ["ACS"])


def test_the_tables_tell_what_the_results_hold(plan: Comparison, said: list[str], tmp_path: Path) -> None:
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
    placed = placed_words(plan.folder / "encoder" / "seed-1" / "model", utterances)
    assert placed
    for utterance in utterances:
        words = placed.get(utterance.id, ())
        assert len(words) in (0, len(utterance.text.split()))
        edges = [edge for word in words for edge in word]
        assert edges == sorted(edges)
        assert not edges or 0 <= edges[0] < edges[-1] <= utterance.seconds
