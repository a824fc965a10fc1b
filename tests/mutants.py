"""Mutation testing: does a test fail when a line of the package is wrong?

    python tests/mutants.py [--jobs N] [--list] [word ...]

Each mutation of tests/mutations replaces one line in a copy of the package and runs its tests against the copy. At
least one of them must fail. Words select mutations by name or file. The exit status is 1 if a mutation survives, if its
line no longer occurs exactly once, or if the tests fail without a mutation. Several runs may go on at the same time:
each job has a copy of its own in a temporary folder.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import queue
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headsync"
TIMEOUT_SECONDS = 900  # a mutation that makes the tests hang is noticed
LINKED = ("models", "demo")  # data of the package, which no mutation changes

sys.path.insert(0, str(ROOT / "tests"))

import mutations  # noqa: E402
from mutations.mutation import Mutation  # noqa: E402


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check that the tests notice seeded faults.")
    parser.add_argument("words", nargs="*", help="run only mutations whose name or file contains one of these")
    parser.add_argument("--jobs", type=int, default=1, help="mutations to run at the same time (default 1)")
    parser.add_argument("--list", action="store_true", help="print the selected mutations and stop")
    options = parser.parse_args(arguments)
    selected = [m for m in all_mutations() if _selected(m, options.words)]
    if options.list:
        for mutation in selected:
            say(f"{mutation.file}: {mutation.name}")
        return 0
    stale = [m for m in selected if mutated_text(m) is None]
    for mutation in stale:
        say(f"STALE     {mutation.file}: {mutation.name}: the line must occur exactly once: {mutation.before}")
    current = [m for m in selected if m not in stale]
    if current and not tests_pass_unchanged(current):
        return 1
    survived = run_all(current, options.jobs)
    say(f"{len(selected)} mutations, {survived} survived, {len(stale)} stale")
    return 1 if survived or stale else 0


def all_mutations() -> list[Mutation]:
    """The lists of all modules of tests/mutations."""
    names = [module.name for module in pkgutil.iter_modules(mutations.__path__)]
    modules = [importlib.import_module(f"mutations.{name}") for name in names if name != "mutation"]
    return [mutation for module in modules for mutation in module.MUTATIONS]


def _selected(mutation: Mutation, words: list[str]) -> bool:
    return not words or any(word in mutation.name or word in mutation.file for word in words)


def mutated_text(mutation: Mutation) -> str | None:
    """The file with the fault; None if the line does not occur exactly once."""
    lines = (PACKAGE / mutation.file).read_text(encoding="utf-8").splitlines(keepends=True)
    matches = [n for n, line in enumerate(lines) if line.strip() == mutation.before]
    if len(matches) != 1:
        return None
    (n,) = matches
    indent = lines[n][: len(lines[n]) - len(lines[n].lstrip())]
    lines[n] = "".join(f"{indent}{line}\n" for line in mutation.after.splitlines())
    return "".join(lines)


def tests_pass_unchanged(selected: list[Mutation]) -> bool:
    """Whether all tests of the selection pass on the unchanged package."""
    tests = list(dict.fromkeys(test for mutation in selected for test in mutation.tests))
    with tempfile.TemporaryDirectory() as folder:
        copy_package(Path(folder))
        outcome = run_tests(Path(folder), tests)
    if outcome.returncode:
        say(f"{outcome.stdout}\n{outcome.stderr}\nthe tests fail without a mutation: fix that first")
    return outcome.returncode == 0


def run_all(selected: list[Mutation], jobs: int) -> int:
    """How many mutations survive."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            copies.put(Path(folder) / str(number))
            copy_package(Path(folder) / str(number))

        def survives(mutation: Mutation) -> bool:
            copy = copies.get()
            try:
                return survives_in(mutation, copy)
            finally:
                copies.put(copy)

        return sum(pool.map(survives, selected))


def copy_package(folder: Path) -> None:
    """The package without its data, to which the copy has links."""
    copy = folder / "headsync"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", *LINKED))
    for name in LINKED:
        if (PACKAGE / name).is_dir():
            (copy / name).symlink_to(PACKAGE / name)


def survives_in(mutation: Mutation, folder: Path) -> bool:
    """Whether all tests pass with the fault in the copy of this folder; the fault is removed afterwards."""
    text, path = mutated_text(mutation), folder / "headsync" / mutation.file
    assert text is not None
    original = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        status = run_tests(folder, list(mutation.tests)).returncode
    except subprocess.TimeoutExpired:
        status = 1
    finally:
        path.write_text(original, encoding="utf-8")
    if status not in (0, 1, 2):  # 2: the faulty module cannot be imported
        say(f"pytest exits with {status}; are the tests named correctly? {' '.join(mutation.tests)}")
    survived = status not in (1, 2)
    say(f"{'SURVIVED' if survived else 'caught  '}  {mutation.file}: {mutation.name}")
    return survived


def run_tests(folder: Path, tests: list[str], timeout: float = TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
    """The tests against the package in a folder."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-o", f"pythonpath={folder} {ROOT / 'tests'}", *tests]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=timeout
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
