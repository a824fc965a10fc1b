"""Checkpoints: everything comes back, a crash or a full disk leaves the last good one, damage is one sentence."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from headsync.errors import TrainingError
from headsync.model_folder import WEIGHTS
from headsync.training import train
from headsync.training.checkpoint import (
    TrainingProgress,
    average,
    load_checkpoint,
    previous,
    replace_damaged,
    save_checkpoint,
    save_weights,
)

SETTINGS = {"training.seed": 2}
PROGRESS = TrainingProgress(update=3, epoch=2, batch=1, best=[(0.5, 2), (0.75, 1)], leader=(0.25, 1), settings=SETTINGS)


class Small(nn.Module):
    """Two parameters; one never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 2)
        self.unused = nn.Parameter(torch.ones(2))

    def updated(self, adam: torch.optim.Adam) -> None:
        adam.zero_grad()
        self.used(torch.arange(3.0)).sum().backward()
        adam.step()


def fresh(seed: int) -> tuple[Small, torch.optim.Adam]:
    torch.manual_seed(seed)
    model = Small()
    return model, torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    model, adam = fresh(1)
    for _ in range(3):
        model.updated(adam)
    save_checkpoint(path, model, adam, PROGRESS)
    return path


def test_a_checkpoint_brings_back_weights_optimiser_and_counters(saved: Path) -> None:
    expected, its_adam = fresh(1)
    for _ in range(3):
        expected.updated(its_adam)
    model, adam = fresh(2)
    assert load_checkpoint(saved, model, adam, SETTINGS) == PROGRESS
    for _ in range(2):  # and going on is the same, to the last bit
        for name, tensor in expected.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name
        model.updated(adam)
        expected.updated(its_adam)


def test_a_checkpoint_before_the_first_update_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, *fresh(1), TrainingProgress(settings=SETTINGS))
    model, adam = fresh(2)
    assert load_checkpoint(path, model, adam, SETTINGS).update == 0
    assert torch.equal(model.used.weight, fresh(1)[0].used.weight)


def complaint(path: Path) -> str:
    with pytest.raises(TrainingError) as caught:
        load_checkpoint(path, *fresh(2), SETTINGS)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.endswith("delete it to start the run again")
    assert "\n" not in message
    return message


def test_a_checkpoint_cut_anywhere_is_one_sentence(saved: Path) -> None:
    content = saved.read_bytes()
    for length in {0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 1}:
        saved.write_bytes(content[:length])
        complaint(saved)


def test_a_flipped_bit_anywhere_is_one_sentence(saved: Path) -> None:
    content = saved.read_bytes()
    for place in range(len(content)):
        saved.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        complaint(saved)


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"\x55"])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before_it(saved: Path, damage: Callable[[bytes], bytes]) -> None:
    good, said = saved.read_bytes(), []
    save_checkpoint(saved, *fresh(3), TrainingProgress(update=9, settings=SETTINGS))
    replace_damaged(saved, said.append)
    assert not said
    assert load_checkpoint(saved, *fresh(2), SETTINGS).update == 9
    saved.write_bytes(damage(saved.read_bytes()))
    replace_damaged(saved, said.append)
    assert said == [f"{saved}: damaged; replaced by the checkpoint before it, of update 3"]
    assert saved.read_bytes() == good
    assert not previous(saved).exists()


def test_two_damaged_checkpoints_are_kept_and_reported(saved: Path) -> None:
    save_checkpoint(saved, *fresh(3), PROGRESS)
    for path in (saved, previous(saved)):
        path.write_bytes(path.read_bytes()[:99])
    replace_damaged(saved, pytest.fail)
    complaint(saved)


def test_the_checkpoint_of_another_run_is_not_kept_beside_a_first_one(saved: Path) -> None:
    save_checkpoint(saved, *fresh(3), PROGRESS)
    saved.unlink()
    save_checkpoint(saved, *fresh(3), PROGRESS)
    assert not previous(saved).exists()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"x" * len(content),
    "a wrong header": lambda content: content[:8] + b"[" + content[9:],
    "longer": lambda content: content + b"x",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_sentence(saved: Path, damage: str) -> None:
    saved.write_bytes(DAMAGES[damage](saved.read_bytes()))
    complaint(saved)


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"progress": "[]"}, {"progress": "{"}, {"progress": '{"updates": 3}'}],
    ids=["none", "empty", "a list", "half", "another version"],
)
def test_a_checkpoint_without_progress_is_one_sentence(saved: Path, metadata: dict[str, str] | None) -> None:
    save_file(load_file(saved), saved, metadata)
    complaint(saved)


METADATA = {"progress": json.dumps({"settings": SETTINGS})}


@pytest.mark.parametrize("name", ["model.used.weight", "model.unused", "adam.exp_avg.used.weight"])
def test_a_checkpoint_that_lacks_a_tensor_is_one_sentence(saved: Path, name: str) -> None:
    save_file({other: tensor for other, tensor in load_file(saved).items() if other != name}, saved, METADATA)
    complaint(saved)


def test_a_checkpoint_of_another_size_is_one_sentence(saved: Path) -> None:
    save_file({**load_file(saved), "model.used.weight": torch.zeros(5, 5)}, saved, METADATA)
    complaint(saved)


def test_another_runs_checkpoint_is_refused_before_anything_is_loaded(saved: Path) -> None:
    with pytest.raises(TrainingError, match=r"other settings: training\.seed was 2 and is now 1; choose"):
        load_checkpoint(saved, *fresh(1), {})


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_error_while_writing_leaves_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before = saved.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, moment, no_room)
        with pytest.raises(TrainingError, match=r"cannot be written \(No space left on device\); .* intact"):
            save_checkpoint(saved, *fresh(3), TrainingProgress(update=9))
    assert saved.read_bytes() == previous(saved).read_bytes() == before
    assert set(saved.parent.iterdir()) == {saved, previous(saved)}


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_between_writing_and_renaming_leaves_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit  # nothing of ours may catch it, as nothing could catch a kill

    before = saved.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, moment, killed)
        with pytest.raises(SystemExit):
            save_checkpoint(saved, *fresh(3), TrainingProgress(update=9))
    assert saved.read_bytes() == before
    save_checkpoint(saved, *fresh(3), TrainingProgress(update=9, settings=SETTINGS))  # what lies about is no hindrance
    assert load_checkpoint(saved, *fresh(1), SETTINGS).update == 9
    assert previous(saved).read_bytes() == before
    assert set(saved.parent.iterdir()) == {saved, previous(saved)}


def test_the_average_is_the_mean_of_the_files(tmp_path: Path) -> None:
    source = torch.Generator().manual_seed(1)
    weights = [{"a": torch.randn(3, generator=source), "b": torch.randn((), generator=source)} for _ in range(3)]
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for path, tensors in zip(paths, weights, strict=True):
        save_weights(path, tensors)
    mean = average(paths)
    for name in ("a", "b"):
        expected = torch.stack([tensors[name].double() for tensors in weights]).mean(0).float()
        torch.testing.assert_close(mean[name], expected, rtol=1e-6, atol=1e-7)
        assert mean[name].dtype == torch.float32
    assert torch.equal(average(paths[:1])["a"], weights[0]["a"])


def command(*arguments: object, most_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """`headsync` in a separate process, in which no file can grow beyond `most_bytes`."""

    def limit() -> None:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    return subprocess.run(
        [sys.executable, "-m", "headsync", *map(str, arguments)],
        preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_full_disk_is_one_sentence_and_the_run_resumes(recipe: Path, tmp_path: Path) -> None:
    """Under a limit of file sizes the checkpoint cannot be written; Python takes the signal as an error of the file."""
    train(recipe, [f"training.folder={tmp_path}/undisturbed"], say=lambda _: None)
    folder, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoint.safetensors"
    train(recipe, [f"training.folder={folder}", "training.epochs=1"], say=lambda _: None)
    before = checkpoint.read_bytes()

    overrides = [f"training.folder={folder}", "training.checkpoint_seconds=0.0"]
    stopped = command("train", recipe, *overrides, most_bytes=len(before) - 1000)
    assert stopped.returncode == 1
    assert stopped.stderr.startswith(f"{checkpoint}: cannot be written (File too large); ")
    assert stopped.stderr.count("\n") == 1
    assert "Traceback" not in stopped.stdout
    assert checkpoint.read_bytes() == before

    train(recipe, overrides, say=lambda _: None)
    expected = (tmp_path / "undisturbed" / "model" / WEIGHTS).read_bytes()
    assert (folder / "model" / WEIGHTS).read_bytes() == expected


def test_a_run_with_other_settings_in_the_same_folder_is_one_sentence(recipe: Path, tmp_path: Path) -> None:
    train(recipe, [f"training.folder={tmp_path}", "training.epochs=1"], say=lambda _: None)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for other, told in {
        "training.seed=2": "training.seed was 1 and is now 2;",
        "network.width=32": "network.width was 16 and is now 32;",
        "decoder.attention=softmax": "decoder.attention was 'hs-dacs' and is now 'softmax';",
        "data.tokens=characters": "data.tokens was 'words' and is now 'characters';",
    }.items():
        with pytest.raises(TrainingError, match=re.escape(f"holds a run with other settings: {told}")) as caught:
            train(recipe, [f"training.folder={tmp_path}", other], say=lambda _: None)
        assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_another_vocabulary_is_named_as_such(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "train.jsonl"
    manifest.write_text((corpus / "train.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    for audio in ("train", "dev"):
        (tmp_path / audio).symlink_to(corpus / audio)
    overrides = [f"training.folder={tmp_path}/run", f"data.train={manifest}", "training.epochs=1"]
    train(recipe, overrides, say=lambda _: None)
    lines = manifest.read_text(encoding="utf-8").splitlines()
    entry = json.loads(lines[0])
    manifest.write_text("\n".join([json.dumps({**entry, "text": "xyz"}), *lines[1:]]), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"the vocabulary, built from data\.train, has changed; choose another"):
        train(recipe, overrides, say=lambda _: None)
