"""A run that is killed five times at random moments ends with the weights and losses of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from headsync.model_folder import WEIGHTS
from headsync.training import train
from training.runs import log, updates_kept

KILLS = 5
SETTINGS = ["training.epochs=14", "training.batch_frames=200", "training.checkpoint_seconds=0.2",
            "training.untruncated_updates=90"]  # fmt: skip
LONGEST_SECONDS = 300.0


def command(recipe: Path, folder: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "headsync", "train", str(recipe), f"training.folder={folder}", *SETTINGS]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def kill_once_beyond(update: int, process: subprocess.Popen[bytes], folder: Path, delay_seconds: float) -> int:
    """SIGKILL, some moment after the run has passed the update; where it stood then."""
    end = time.monotonic() + LONGEST_SECONDS
    while updates_kept(folder) <= update:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < end, "the run does not get on"
        time.sleep(0.01)
    time.sleep(delay_seconds)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    return updates_kept(folder)


def test_a_run_killed_at_five_random_moments_ends_like_an_undisturbed_one(recipe: Path, tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    train(recipe, [f"training.folder={undisturbed}", *SETTINGS], say=lambda _: None)
    updates = updates_kept(undisturbed)
    source = random.Random(1)
    moments = sorted(source.sample(range(updates * 3 // 4), KILLS))
    stood = [kill_once_beyond(moment, command(recipe, killed), killed, source.uniform(0, 0.3)) for moment in moments]
    assert stood == sorted(stood)
    assert stood[-1] < updates
    assert command(recipe, killed).wait(LONGEST_SECONDS) == 0
    assert log(killed) == log(undisturbed)
    assert (killed / "model" / WEIGHTS).read_bytes() == (undisturbed / "model" / WEIGHTS).read_bytes()
    assert (killed / "checkpoint.safetensors").read_bytes() == (undisturbed / "checkpoint.safetensors").read_bytes()
