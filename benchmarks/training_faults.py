"""Faults during training, preparing and exporting: what was injected, and whether anything was lost.

    python benchmarks/training_faults.py [kills] [truncations] [flips] [full] [read-only] [--kills 20] [--seed 1]

kills: a run of two processes is killed at random moments: one rank, both ranks, or torchrun with both; some of the
kills fall into the start of the processes. truncations: the checkpoint of a stopped run is cut at every 5 % of its
length. flips: one bit of it is changed there. full, read-only: the commands write to a file system (tmpfs, requires
root) that is too small or read-only. A command must end with one sentence that begins with a path there. It is then
started again without the fault. Every row is compared byte by byte with the same command that nothing disturbed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

import headsync.training.asr_task  # noqa: F401  # imported once, before commands are forked
from headsync.cli.app import main as headsync_main
from headsync.corpora import toy
from headsync.errors import HeadsyncError
from headsync.training import train

RECIPE = """
network = {{ width = 16, heads = 2, feedforward = 32, kernels = 4 }}
encoder = {{ layers = 1, left_frames = 4, centre_frames = 4, right_frames = 2, mode = "reuse" }}
decoder = {{ layers = 1, energy_bias = -1.0 }}
data = {{ train = "{corpus}/train.jsonl", dev = "{corpus}/dev.jsonl", tokens = "words", workers = 0 }}

[training]
epochs = 2
batch_frames = 400
noam_factor = 0.5
warmup_updates = 10
average = 2
checkpoint_seconds = 0.0
"""
LONG = ("training.epochs=14", "training.batch_frames=200", "training.checkpoint_seconds=0.2")
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
PATIENCE_SECONDS = 600.0
WHO = ("rank 0", "rank 1", "both ranks", "torchrun and both ranks")
STEPS = 12  # sizes of a disk that is too small

Row = tuple[str, int, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("faults", nargs="*", help=f"of {', '.join(FAULTS)}; all by default")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| injected | times | answered by | lost |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        toy.prepare(work / "corpus", strings=toy.Counts(train=10, dev=2, test=2))
        recipe = work / "tiny.toml"
        recipe.write_text(RECIPE.format(corpus=work / "corpus"), encoding="utf-8")
        for name in arguments.faults or FAULTS:
            for row in FAULTS[name](recipe, work, arguments):
                print("|", " | ".join(map(str, row)), "|", flush=True)


# kills


def kills(recipe: Path, work: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """Kill a run of two processes again and again, and compare its end with that of an undisturbed run."""
    whole, killed, source = work / "whole" / "run", work / "killed" / "run", random.Random(arguments.seed)
    assert torchrun(recipe, whole).wait(PATIENCE_SECONDS) == 0
    updates = kept(whole)
    moments = sorted(source.sample(range(updates * 9 // 10), arguments.kills))
    agent, count, stood = torchrun(recipe, killed), dict.fromkeys(WHO, 0), []
    for moment in moments:
        at_start, who = source.random() < 0.25, source.choice(WHO)
        if not at_start:
            wait_for(moment, killed, agent)
        time.sleep(source.uniform(0.0, 4.0 if at_start else 0.3))
        stood.append(kept(killed))
        kill(agent, who)
        count[who] += 1
        print(f"{who}{', at start' if at_start else ''}: update {stood[-1]} of {updates}", file=sys.stderr, flush=True)
        if who == WHO[-1] or agent.poll() is not None:
            agent.wait()
            agent = torchrun(recipe, killed)
    code = agent.wait(PATIENCE_SECONDS)
    lost = difference(whole, killed) if code == 0 else f"the run ended with exit code {code}"
    where = f"resumed; kills between updates {stood[0]} and {stood[-1]} of {updates}"
    for who, times in count.items():
        yield f"SIGKILL of {who}", times, where, lost


def torchrun(recipe: Path, folder: Path) -> subprocess.Popen[bytes]:
    meeting = ["--nproc-per-node=2", "--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", "headsync", "train", str(recipe)]
    one_thread, nowhere = {**os.environ, "OMP_NUM_THREADS": "1"}, subprocess.DEVNULL
    arguments = [f"training.folder={folder}", *LONG]
    return subprocess.Popen([*command, *arguments], env=one_thread, stdout=nowhere, stderr=nowhere)


def kill(agent: subprocess.Popen[bytes], who: str) -> None:
    """Kill processes of a run, as soon as they have been started."""
    while not (found := [pid for rank, pid in ranks_of(agent.pid).items() if str(rank) in who or "both" in who]):
        if agent.poll() is not None:
            sys.exit("the run ended before it could be killed")
        time.sleep(0.02)
    if "torchrun" in who:
        agent.kill()
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ranks_of(agent: int) -> dict[int, int]:
    """The processes of a run, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
            entries = dict(e.partition("=")[::2] for e in (folder / "environ").read_text().split("\0"))
        except (OSError, ValueError):  # it has ended
            continue
        if parent == agent and "RANK" in entries:
            found[int(entries["RANK"])] = int(folder.name)
    return found


def wait_for(update: int, folder: Path, agent: subprocess.Popen[bytes]) -> None:
    """Wait until the checkpoint is beyond this update, or the run has ended."""
    end = time.monotonic() + PATIENCE_SECONDS
    while kept(folder) <= update and agent.poll() is None:
        if time.monotonic() > end:
            sys.exit("the run does not advance")
        time.sleep(0.02)


def kept(folder: Path) -> int:
    """The update of the checkpoint."""
    try:
        with safe_open(folder / CHECKPOINT, "pt") as file:
            return int(json.loads(file.metadata()["progress"])["update"])
    except (OSError, SafetensorError):
        return 0


# damaged checkpoints


def cut(path: Path, percent: int) -> None:
    os.truncate(path, path.stat().st_size * percent // 100)


def flip(path: Path, percent: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[len(data) * percent // 100] ^= 1 << percent % 8
    path.write_bytes(data)


def truncations(recipe: Path, work: Path, _: argparse.Namespace) -> Iterator[Row]:
    yield from damages(recipe, work, cut, "cut")


def flips(recipe: Path, work: Path, _: argparse.Namespace) -> Iterator[Row]:
    yield from damages(recipe, work, flip, "with a flipped bit")


def damages(recipe: Path, work: Path, damage: Callable[[Path, int], None], how: str) -> Iterator[Row]:
    """Damage the last checkpoint of a stopped run; damage both; and continue."""
    whole, stopped = work / "whole-1" / "run", work / "stopped" / "run"
    quietly(recipe, whole)
    quietly(recipe, stopped, "training.epochs=1")
    for name, files in {"the last checkpoint": [CHECKPOINT], "both checkpoints": [CHECKPOINT, PREVIOUS]}.items():
        answers: dict[str, list[str]] = {}
        for percent in range(0, 100, 5):
            copy = work / "damaged" / "run"
            shutil.copytree(stopped, copy)
            for file in files:
                damage(copy / file, percent)
            try:
                quietly(recipe, copy)
                answers.setdefault("resumed from the one before", []).append(difference(whole, copy))
            except HeadsyncError as error:
                clear = str(error).startswith(str(copy)) and "\n" not in str(error)
                answers.setdefault("one sentence" if clear else f"unclear: {error}", []).append("not resumed")
            shutil.rmtree(copy)
        for answer, lost in answers.items():
            yield f"{name} of a run {how} at every 5 % of its length", len(lost), answer, ", ".join(sorted(set(lost)))


def quietly(recipe: Path, folder: Path, *overrides: str) -> None:
    with redirect_stdout(io.StringIO()):
        train(recipe, [f"training.folder={folder}", *overrides], say=lambda _: None)


# disks that are full or read-only


def full(recipe: Path, work: Path, _: argparse.Namespace) -> Iterator[Row]:
    """Run each command on a disk that is too small, for several sizes; make room and run it again."""
    for name, command in commands(recipe).items():
        expected = work / f"expected-{name}" / "out"
        run_command(*command(expected))
        need = sum(path.stat().st_size for path in expected.rglob("*"))
        answers, lost = [], []
        for step in range(STEPS):
            with disk(work / "disk", 65_536 + need * step // STEPS) as mounted:
                answers.append(answer(run_command(*command(mounted / "out")), mounted))
                mount("remount,size=1g", mounted)
                code, errors = run_command(*command(mounted / "out"))
                lost.append(difference(expected, mounted / "out") if code == 0 else errors)
        yield f"disk full, `headsync {name}`", STEPS, counted(answers), ", ".join(sorted(set(lost)))


def read_only(recipe: Path, work: Path, _: argparse.Namespace) -> Iterator[Row]:
    """Run each command on a read-only disk: into a new folder, and into one with a finished or stopped output."""
    for name, command in commands(recipe).items():
        expected, answers, lost = work / f"expected-{name}" / "out", [], []
        if not expected.exists():
            run_command(*command(expected))
        for begun in (False, True):
            with disk(work / "disk", 2**30) as mounted:
                if begun:
                    run_command(*command(mounted / "out"), *(["training.epochs=1"] if name == "train" else []))
                mount("remount,ro", mounted)
                answers.append(answer(run_command(*command(mounted / "out")), mounted))
                mount("remount,rw", mounted)
                code, errors = run_command(*command(mounted / "out"))
                lost.append(difference(expected, mounted / "out") if code == 0 else errors)
        yield f"read-only disk, `headsync {name}`", 2, counted(answers), ", ".join(sorted(set(lost)))


def commands(recipe: Path) -> dict[str, Callable[[Path], list[str]]]:
    """The commands that write files, as functions of the output folder."""
    manifest = str(recipe.parent / "corpus" / "train.jsonl")
    return {
        "train": lambda out: ["train", str(recipe), f"training.folder={out}"],
        "prepare": lambda out: ["prepare", "shards", manifest, str(out), "--size=3"],
        "export": lambda out: ["export", "digits-en", str(out)],
    }


def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command, in a forked process."""
    with tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(errors.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(_run(arguments))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        errors.seek(0)
        return code, errors.read().decode()


def _run(arguments: tuple[str, ...]) -> int:
    sys.argv = ["headsync", *arguments]
    sys.stderr = os.fdopen(2, "w", buffering=1)
    try:
        headsync_main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 70
    return 0


def answer(ended: tuple[int, str], disk: Path) -> str:
    """How a command ended, in a few words."""
    code, errors = ended
    if code == 0:
        return "done"
    clear = code == 1 and errors.count("\n") == 1 and errors.startswith(str(disk))
    return "one sentence with the path" if clear else f"exit code {code}: {errors}"


@contextmanager
def disk(path: Path, size: int) -> Iterator[Path]:
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def mount(options: str, path: Path) -> None:
    subprocess.run(["mount", "-o", options, str(path)], check=True)


def counted(answers: list[str]) -> str:
    return ", ".join(f"{answers.count(one)} times {one}" for one in dict.fromkeys(answers))


def difference(one: Path, other: Path) -> str:
    """Files that differ between two folders; TensorBoard's are not compared, and the folder may name itself."""
    first, second = contents(one), contents(other)
    changed = [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]
    return f"differs: {', '.join(changed)}" if changed else "nothing"


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("events.")]
    names = {str(path.relative_to(folder)): path.read_bytes().replace(os.fsencode(folder), b"") for path in files}
    return {name: content for name, content in names.items() if name != PREVIOUS}


FAULTS: dict[str, Callable[[Path, Path, argparse.Namespace], Iterator[Row]]] = {
    "kills": kills, "truncations": truncations, "flips": flips, "full": full, "read-only": read_only,
}  # fmt: skip


if __name__ == "__main__":
    main()
