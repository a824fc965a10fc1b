"""Many processes, many parts, less memory, shards, speeds: none of them changes what is learned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from headsync.attention import MECHANISMS
from headsync.corpora import shards
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.errors import ConfigError, TrainingError
from headsync.frontend.features import Features
from headsync.model_folder import WEIGHTS, load_folder
from headsync.nn.model import Model
from headsync.recipe import load_config
from headsync.recognizer import Recognizer
from headsync.training import asr_task, train
from headsync.training.asr_task import start
from headsync.training.batches import features_of, load
from headsync.training.bucketing import Share, Split, at_speeds, plan_shards
from headsync.training.distributed import Ranks, device_of
from headsync.training.optimisation import Updater
from headsync.training.trainer import Trainer
from training.lm_recipe import write_recipe
from training.runs import log, quietly, updates_kept

NO_CHANCE = ["network.dropout=0.0"]
LONGEST_SECONDS = 400.0


def losses(folder: Path) -> list[float]:
    """Of every update, and of every epoch on the development set."""
    return [entry["loss"] if "loss" in entry else entry["dev"]["loss"] for entry in log(folder)]


def torchrun(recipe: Path, folder: Path, *overrides: str, restarts: int = 0) -> subprocess.Popen[bytes]:
    """Two processes on this machine, which find each other by a port that is free."""
    command = ["-m", "headsync", "train", str(recipe), f"training.folder={folder}", *overrides]
    return two_processes(*command, restarts=restarts)


def two_processes(*command: str, restarts: int = 0) -> subprocess.Popen[bytes]:
    meeting = ["--nproc-per-node=2", f"--max-restarts={restarts}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    called = [sys.executable, "-m", "torch.distributed.run", *meeting, *command]
    return subprocess.Popen(called, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


# how a batch is shared


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(), unique=True, min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_every_row_goes_to_one_part_of_one_process(rows: list[int], processes: int, parts: int) -> None:
    shares = [Split(rank, processes, parts).rows(rows) for rank in range(processes)]
    assert sorted(row for share in shares for part in share for row in part) == sorted(rows)
    sizes = [len(part) for share in shares for part in share]
    assert max(sizes) - min(sizes) <= 1
    assert all(len(share) <= parts for share in shares)


@pytest.fixture
def run(recipe: Path, tmp_path: Path) -> Trainer[Any, Any]:
    return start(load_config(recipe, [f"training.folder={tmp_path}/run", *NO_CHANCE]), say=lambda _: None)


def test_the_weights_of_all_shares_of_a_batch_add_up_to_one(run: Trainer[Any, Any]) -> None:
    batches = run.task.train_batches(0)
    for processes, parts in ((1, 1), (2, 1), (1, 3), (3, 2), (5, 1)):
        shares = [batches.share(0, Split(rank, processes, parts)) for rank in range(processes)]
        assert sum(sum(share.weights) for share in shares) == pytest.approx(1.0)
        assert all(share.parts for share in shares), "a process without a row would leave the others waiting"
    assert batches.share(0, Split()).weights == [1.0]


@pytest.mark.parametrize("per", ["token", "utterance"])
def test_a_batch_in_parts_gives_the_gradient_of_the_whole(recipe: Path, tmp_path: Path, per: str) -> None:
    overrides = [f"training.folder={tmp_path}/run", *NO_CHANCE, f"training.loss_per={per}"]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    batches = run.task.train_batches(0)
    batches.rows, grown = [[0, 1, 2, 3, 4]], []
    assert len(set(batches.share(0, Split(parts=2)).weights)) == 2  # parts of different size
    for parts in (1, 2, 3):
        again = start(run.task.config, say=lambda _: None)
        figures = again.update(batches.share(0, Split(parts=parts)))
        gradient = torch.cat([p.grad.flatten() for p in again.task.model.parameters() if p.grad is not None])
        grown.append((gradient, figures))
    for gradient, figures in grown[1:]:
        torch.testing.assert_close(gradient, grown[0][0], rtol=1e-4, atol=1e-6)
        if per == "token":
            assert figures == pytest.approx(grown[0][1], rel=1e-4, abs=1e-6)
        assert figures["loss"] == pytest.approx(grown[0][1]["loss"], rel=1e-4)


# less memory, less precision


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_learns_nearly_the_same_and_sums_in_single(recipe: Path, tmp_path: Path, precision: str) -> None:
    quietly(recipe, tmp_path / "single", "training.epochs=1", *NO_CHANCE)
    quietly(recipe, tmp_path / "half", "training.epochs=1", f"training.precision={precision}", *NO_CHANCE)
    single, half = losses(tmp_path / "single"), losses(tmp_path / "half")
    assert half != single
    np.testing.assert_allclose(half, single, rtol=0.05)
    assert load_folder(tmp_path / "half" / "model").weights.stat().st_size > 0
    with safe_open(tmp_path / "half" / "model" / WEIGHTS, "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118


def test_mechanisms_attend_in_single_precision(recipe: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}", "training.precision=bfloat16"]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    batch = run.task.train_batches(0)[0]
    with run.updater.precision():
        output = run.task.model(batch.features_BTF, batch.lengths_B, batch.tokens_BL)
    assert output.decoder_BLV.dtype == torch.bfloat16
    assert output.alignments[0].weights_BHLT.dtype == torch.float32


def test_float16_finds_its_scale_and_keeps_it_over_a_stop(recipe: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}", "training.precision=float16", "training.epochs=1"]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    before = [p.detach().clone() for p in run.task.model.parameters()]
    run.progress.scale = 2.0**127  # gradients so scaled are infinite: the step is left out, the scale falls
    run.updater.restore_scale(run.progress)
    run.update(Share([run.task.train_batches(0)[0]], [1.0], 0))
    assert all(torch.equal(b, p) for b, p in zip(before, run.task.model.parameters(), strict=True))
    run.updater.store_scale(run.progress)
    assert run.progress.scale == 2.0**126
    again = Updater(run.task.model, run.task.optimiser, run.settings, run.ranks)
    again.restore_scale(run.progress)
    assert again.scaler.get_scale() == 2.0**126
    run.progress.scale = 1e-4
    run.updater.restore_scale(run.progress)
    with pytest.raises(TrainingError, match="is not finite"):
        run.update(Share([run.task.train_batches(0)[0]], [1.0], 0))


def test_processes_compute_on_gpus_if_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(1) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="this machine has 2 GPUs"):
        device_of(2)


@pytest.mark.parametrize("name", MECHANISMS)
def test_networks_compute_where_their_input_is(recipe: Path, name: str) -> None:
    """On the meta device; as a GPU does, it refuses tensors of other devices."""
    modes = ("isolated", "reuse", "contextual", "full") if name == "hs-dacs" else ("reuse",)
    for mode in modes:
        config = load_config(recipe, [f"decoder.attention={name}", f"encoder.mode={mode}"])
        model = Model(config, config.columns, 9).train().to("meta")
        with torch.device("meta"):
            features, whole = torch.zeros(2, 90, config.columns), torch.zeros(2, 5, dtype=torch.long)
        output = model(features, whole[:, 0], whole)
        (output.ctc_BTV.sum() + output.decoder_BLV.sum()).backward()
        assert output.decoder_BLV.device == torch.device("meta")
        unused = [label for label, parameter in model.named_parameters() if parameter.grad is None]
        assert bool(unused) == (name == "cif"), "DDP looks for unused parameters only with CIF"


def test_an_error_in_shared_work_is_raised() -> None:
    with pytest.raises(ConfigError, match="no such thing"):
        Ranks().shared(_fails)


def _fails() -> None:
    raise ConfigError("no such thing")


# speeds


def test_every_utterance_is_used_at_every_speed(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    overrides = [f"training.folder={tmp_path}/run", "training.speeds=0.9 1.0 1.1"]
    run = start(load_config(recipe, overrides), say=lambda _: None)
    assert len(run.task.train) == 30
    slow, same, fast = (next(u for u in run.task.train if u.speed == speed) for speed in (0.9, 1.0, 1.1))
    assert slow.id == same.id == fast.id
    frames = {u.speed: len(features_of(u, Features())) for u in (slow, same, fast)}
    for speed, length in frames.items():
        assert length == pytest.approx(frames[1.0] / speed, abs=3)


def test_a_faster_tone_is_a_higher_tone(tmp_path: Path) -> None:
    import soundfile

    time = np.arange(16_000) / 16_000
    soundfile.write(tmp_path / "tone.wav", 0.3 * np.sin(2 * np.pi * 1000 * time), 16_000)
    utterance = Utterance("tone", tmp_path / "tone.wav", "a", 1.0)
    loudest = [int(features_of(u, Features())[20].argmax()) for u in at_speeds([utterance], [0.9, 1.0, 1.1])]
    assert loudest == sorted(set(loudest))


@pytest.mark.parametrize("speeds", ["fast", "0.9 0", "0.1"])
def test_speeds_that_are_none_are_refused(recipe: Path, speeds: str) -> None:
    with pytest.raises(ConfigError, match="speeds"):
        load_config(recipe, [f"training.speeds={speeds}"])


# shards


@pytest.fixture(scope="module")
def sharded(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    shards.prepare(corpus / "train.jsonl", folder, size=3)
    return folder


def test_a_plan_over_shards_has_every_utterance_once_and_few_shards_at_a_time(sharded: Path) -> None:
    utterances = shards.read_shards(sharded)
    plans = [plan_shards(utterances, 300, seed=1, epoch=epoch, at_once=2) for epoch in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    for batches in plans:
        assert sorted(row for batch in batches for row in batch) == list(range(10))
        assert all(len({utterances[row].audio for row in batch}) <= 2 for batch in batches)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_shards_are_those_of_the_files_and_each_shard_is_read_once(
    recipe: Path, corpus: Path, sharded: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asr_task, "plan_shards", partial(plan_shards, at_once=2))
    overrides = [f"training.folder={tmp_path}", f"data.train={sharded}"]
    run = start(load_config(recipe, [*overrides, "training.batch_frames=300"]), say=lambda _: None)
    files = {u.id: u for u in read_manifest(corpus / "train.jsonl")}
    batches = run.task.train_batches(0)
    opened: list[str] = []
    walk = shards._members
    monkeypatch.setattr(shards, "_members", lambda path, names: opened.append(path.name) or walk(path, names))
    for first, split in ((0, Split()), (2, Split()), (0, Split(1, 2))):
        opened.clear()
        for number, share in enumerate(load(batches, first, workers, split), first):
            rows = [row for part in split.rows(batches.rows[number]) or [batches.rows[number][:1]] for row in part]
            lengths = [len(features_of(files[run.task.train[row].id], Features())) for row in rows]
            assert share.parts[0].lengths_B.tolist() == lengths
        assert len(opened) == len(set(opened))


def test_a_stopped_run_over_shards_resumes(recipe: Path, sharded: Path, tmp_path: Path) -> None:
    over = [f"data.train={sharded}", "training.checkpoint_seconds=0.0"]
    quietly(recipe, tmp_path / "whole", *over)
    quietly(recipe, tmp_path / "stopped", *over, "training.epochs=1")
    quietly(recipe, tmp_path / "stopped", *over)
    assert log(tmp_path / "stopped") == log(tmp_path / "whole")


def test_shards_are_refused_as_dev_set(recipe: Path, sharded: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.dev = .* is a folder; name a manifest"):
        quietly(recipe, tmp_path, f"data.dev={sharded}")


# pitch


def test_a_model_with_pitch_trains_and_streams(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    from headsync.frontend.audio import read_audio

    model = quietly(recipe, tmp_path, "features.pitch=true", "training.epochs=1")
    folder = load_folder(model)
    assert folder.config.features.pitch
    assert folder.statistics.mean.shape == (83,)
    recognizer = Recognizer.load(model)
    samples, rate = read_audio(read_manifest(corpus / "test.jsonl")[0].audio)
    whole, pieces = recognizer.session(), recognizer.session()
    expected = whole.push(samples, rate) + whole.finish()
    told = [event for begin in range(0, len(samples), 999) for event in pieces.push(samples[begin : begin + 999], rate)]
    assert told + pieces.finish() == expected
    with pytest.raises(TrainingError, match="holds a run with other settings"):
        quietly(recipe, tmp_path)


# processes


def children(pid: int) -> list[int]:
    """The processes that this one started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it has ended
            continue
        if int(after_name[1]) == pid:
            found.append(int(stat.parent.name))
    return sorted(found)


@pytest.fixture(scope="module")
def two(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs by two processes, which write down which threads outlive the training."""
    folder, script = tmp_path_factory.mktemp("two") / "run", Path(__file__).with_name("threads_left.py")
    assert two_processes(str(script), str(recipe), str(folder), *SETTINGS).wait(LONGEST_SECONDS) == 0
    return folder


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds threads by /proc")
def test_no_thread_of_the_exchange_outlives_the_training(two: Path) -> None:
    """A thread that releases a tensor while Python finalises would abort the process."""
    left = [(two / f"threads-{rank}.txt").read_text(encoding="utf-8").split("\n") for rank in range(2)]
    assert all(names for names in left)
    assert not [name for names in left for name in names if "gloo" in name]


SETTINGS: Sequence[str] = (*NO_CHANCE, "training.checkpoint_seconds=0.0", "training.untruncated_updates=4")


def test_two_processes_learn_what_one_does(recipe: Path, two: Path, tmp_path: Path) -> None:
    quietly(recipe, tmp_path, *SETTINGS)
    np.testing.assert_allclose(losses(two), losses(tmp_path), rtol=1e-4)
    assert [entry.get("epoch") for entry in log(two)] == [entry.get("epoch") for entry in log(tmp_path)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes of a run by /proc")
def test_a_run_whose_process_is_killed_starts_again_and_ends_like_an_undisturbed_one(
    recipe: Path, two: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    agent = torchrun(recipe, folder, *SETTINGS, restarts=1)
    end = time.monotonic() + LONGEST_SECONDS
    while updates_kept(folder) < 4:
        assert agent.poll() is None, "the run ended before a process could be killed"
        assert time.monotonic() < end, "the run does not get on"
        time.sleep(0.02)
    first, second = children(agent.pid)[-2:]
    os.kill(second, signal.SIGKILL)
    assert agent.wait(LONGEST_SECONDS) == 0
    assert not Path(f"/proc/{first}").exists(), "the other process should have been started anew as well"
    assert log(folder) == log(two)
    assert (folder / "model" / WEIGHTS).read_bytes() == (two / "model" / WEIGHTS).read_bytes()


def test_language_models_are_trained_by_two_processes_too(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    train(recipe, [f"training.folder={tmp_path}/one", "language.dropout=0.0"], say=lambda _: None)
    assert torchrun(recipe, tmp_path / "two", "language.dropout=0.0").wait(LONGEST_SECONDS) == 0
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-4)
