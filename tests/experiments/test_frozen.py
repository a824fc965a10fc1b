"""A comparison of decoders on the stored frames of one encoder: CTC first, then two mechanisms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headsync.corpora import toy
from headsync.experiments.figures import draw_losses
from headsync.experiments.plan import Comparison, read_plan
from headsync.experiments.report import report
from headsync.experiments.runs import Runs, SystemResult, dev_losses, run_only
from headsync.model_folder import WEIGHTS
from headsync.training.asr_task import AsrTask
from training.runs import Interrupts, log
from training.softmax_start import write_start

PLAN = """
recipe = "recipe.toml"
folder = "{folder}/runs"
limit = 1
tests = {{ test = "{folder}/toy/test.jsonl" }}
[tune]
ctc_weight = [0.1, 0.5]
[encoder]
"training.ctc_weight" = 1
"training.epochs" = 1
[[system]]
name = "MTA"
settings = {{ "decoder.attention" = "mta", "training.epochs" = 1 }}
[[system]]
name = "HS-DACS"
seeds = [1, 2]
settings = {{ "decoder.attention" = "hs-dacs", "training.epochs" = 1 }}
[sweep]
systems = ["HS-DACS"]
shares = [1.0, 0.5]
[[choice]]
name = "random"
of = "HS-DACS"
random_decoder = true
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("frozen")
    toy.prepare(folder / "toy", strings=toy.Counts(train=8, dev=2, test=2))
    write_start(folder / "toy", folder)
    (folder / "plan.toml").write_text(PLAN.format(folder=folder))
    return read_plan(folder / "plan.toml")


def test_systems_share_encoder_ctc_and_frames_and_a_stopped_comparison_continues(
    plan: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with monkeypatch.context() as patch:
        interrupts = Interrupts(AsrTask.loss, 7, after=False)
        patch.setattr(AsrTask, "loss", lambda *arguments: interrupts(*arguments))
        with pytest.raises(KeyboardInterrupt):
            report(plan, Runs(plan, said.append))
    tables, _ = report(plan, Runs(plan, said.append))
    assert sum("computing the encoder frames" in line for line in said) == 1
    assert sum("variance of log Z explained" in line for line in said) == 3
    encoder, *systems = (
        load_file(plan.folder / name / "model" / WEIGHTS)
        for name in ("encoder/seed-1", "MTA/seed-1", "HS-DACS/seed-1", "HS-DACS/seed-2")
    )
    for weights in systems:
        shared = [name for name in encoder if name.startswith(("encoder.", "ctc."))]
        assert all(torch.equal(weights[name], encoder[name]) for name in shared)
    assert any("Search settings with the lowest error rate on test: MTA ctc_weight" in n for n in tables[0].notes)
    assert all(row[5].endswith("%") for row in tables[1].rows)  # by what steps were ended
    again: list[str] = []
    report(plan, Runs(plan, again.append))
    assert again == []


def test_a_random_decoder_is_trained_on_the_same_frames_and_its_loss_is_drawn(plan: Comparison, tmp_path: Path) -> None:
    runs = Runs(plan, lambda _: None)
    curves = dev_losses(runs)
    assert list(curves) == ["MTA", "HS-DACS", "random"]
    for name, curve in curves.items():
        entries = log(plan.folder / name / "seed-1")
        assert curve == [(e["update"], e["dev"]["attention_loss"]) for e in entries if "dev" in e]
        assert len(curve) == 1  # of one epoch
        assert curve[0][1] > 0
    encoder, converted, random = (
        load_file(plan.folder / name / "model" / WEIGHTS)
        for name in ("encoder/seed-1", "HS-DACS/seed-1", "random/seed-1")
    )
    layer = "decoder.stack.1.feedforward.first.weight"
    assert torch.allclose(converted[layer], encoder[layer], atol=0.1)
    assert not torch.allclose(random[layer], encoder[layer], atol=0.1)
    shared = [name for name in encoder if name.startswith(("encoder.", "ctc."))]
    assert all(torch.equal(random[name], encoder[name]) for name in shared)
    draw_losses(curves, "training", tmp_path / "dev-loss.png")
    assert (tmp_path / "dev-loss.png").stat().st_size > 5000


def test_the_chosen_value_has_the_lowest_error_rate(plan: Comparison) -> None:
    runs = Runs(plan, lambda _: None)
    chosen = runs.tuned(plan.system("MTA"))
    model = plan.folder / "MTA" / "seed-1"
    rates = {w: json.loads((model / f"test-ctc_weight-{w}.json").read_text())["error_rate"] for w in (0.1, 0.5)}
    assert rates[chosen["ctc_weight"]] == min(rates.values())


def test_another_seed_is_not_measured_before_the_first_is_trained(plan: Comparison, tmp_path: Path) -> None:
    said: list[str] = []
    (plan.folder / "HS-DACS" / "seed-1" / "done.json").rename(tmp_path / "done.json")
    run_only(plan, Runs(plan, said.append), ["HS-DACS"], [2])
    (tmp_path / "done.json").rename(plan.folder / "HS-DACS" / "seed-1" / "done.json")
    assert len(said) == 1
    assert "not measured; the search is tuned with the first seed" in said[0]


def test_intervals_are_over_speakers_if_there_are_several() -> None:
    counts = ((1, 10), (2, 20), (0, 5))
    result = SystemResult(0.1, 3, 35, None, 0.1, counts, (), speakers=("a", "b", "a"))
    assert [(one.errors, one.words) for one in result.error_counts] == [(1, 15), (2, 20)]
    alone = SystemResult(0.1, 3, 35, None, 0.1, counts, (), speakers=("a", "a", "a"))
    assert len(alone.error_counts) == 3
