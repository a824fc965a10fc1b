"""Mutation testing of whole modules: every operator, number and condition is changed, one at a time.

    python tests/module_mutants.py attention decoding engine [--sample 40] [--out runs/mutants.jsonl]

Arguments are folders or files of src/headsync. A mutant is run against the test file of its module, then against the
tests of its package; it survives if all pass. Results are appended to --out, one JSON object each; a repeated command
continues. --sample selects so many mutants of each file, always the same ones. At the end the survivors are listed by
file. `mutants.py` runs selected mutations whose tests are named.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from mutants import PACKAGE, ROOT, copy_package, run_tests, say

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NOT_RUN = ("returns", "annotation", "type_params", "decorator_list")  # fields that do not affect the behaviour


class Mutant(NamedTuple):
    """A changed expression. The path leads from the module to it."""

    file: str  # relative to src/headsync
    line: int
    before: str
    after: str
    path: tuple[tuple[str, int | None], ...]

    @property
    def key(self) -> str:
        steps = ".".join(name if place is None else f"{name}{place}" for name, place in self.path)
        return f"{self.file}:{steps}:{self.after}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="folders or files of src/headsync")
    parser.add_argument("--sample", type=int, help="mutants of each file; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants.jsonl")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args(arguments)
    selected = [mutant for file in files(options.modules) for mutant in sampled(file, options.sample)]
    if options.list:
        for mutant in selected:
            say(f"{mutant.file}:{mutant.line}: {mutant.before}  ->  {mutant.after}")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    caught = read_results(options.out)
    with tempfile.TemporaryDirectory() as folder, options.out.open("a", encoding="utf-8") as out:
        copy_package(Path(folder))
        seconds: dict[str, float] = {}
        for mutant in selected:
            if mutant.key not in caught:
                caught[mutant.key] = is_caught(mutant, Path(folder), seconds)
                result = {"key": mutant.key, "line": mutant.line, "caught": caught[mutant.key]}
                out.write(json.dumps(result) + "\n")
                out.flush()
    return report(selected, caught)


def files(modules: list[str]) -> list[str]:
    paths = [path for module in modules for path in sorted((PACKAGE / module).rglob("*.py")) or [PACKAGE / module]]
    return [str(path.relative_to(PACKAGE)) for path in paths]


def sampled(file: str, count: int | None) -> list[Mutant]:
    found = list(mutants_of(file, ast.parse((PACKAGE / file).read_text(encoding="utf-8"))))
    if count is None or len(found) <= count:
        return found
    chosen = sorted(random.Random(file).sample(range(len(found)), count))
    return [found[n] for n in chosen]


def mutants_of(file: str, tree: ast.Module) -> Iterator[Mutant]:
    for path, node in walk(tree, ()):
        for changed in changes(node):
            yield Mutant(file, getattr(node, "lineno", 0), ast.unparse(node), ast.unparse(changed), path)


def walk(
    node: ast.AST, path: tuple[tuple[str, int | None], ...]
) -> Iterator[tuple[tuple[tuple[str, int | None], ...], ast.AST]]:
    """All nodes that run, with their paths; invariants (`assert`) and literal types are left out."""
    for name, value in ast.iter_fields(node):
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for place, child in children:
            if isinstance(child, ast.AST) and name not in NOT_RUN and not isinstance(child, ast.Assert | ast.Raise):
                here = (*path, (name, place))
                yield here, child
                yield from walk(child, here)


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Faulty versions of a node."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and type(changed.ops[0]) in SWAPS:
        changed.ops[0] = SWAPS[type(changed.ops[0])]()  # type: ignore[call-overload]
        yield changed
    elif isinstance(changed, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(changed.op) in SWAPS:
        changed.op = SWAPS[type(changed.op)]()  # type: ignore[assignment]
        yield changed
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not | ast.USub):
        yield changed.operand
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, bool):
        yield ast.Constant(not changed.value)
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, int | float):
        yield ast.Constant(changed.value + 1)
    elif isinstance(changed, ast.If | ast.While | ast.IfExp) and not isinstance(changed.test, ast.Compare | ast.BoolOp):
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield changed
    elif isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call):
        yield ast.Pass()


def apply(mutant: Mutant) -> str:
    """The text of the module with the fault."""
    tree = ast.parse((PACKAGE / mutant.file).read_text(encoding="utf-8"))
    parent: ast.AST = tree
    for name, place in mutant.path[:-1]:
        parent = getattr(parent, name) if place is None else getattr(parent, name)[place]
    name, place = mutant.path[-1]
    old = getattr(parent, name) if place is None else getattr(parent, name)[place]
    (new,) = [changed for changed in changes(old) if ast.unparse(changed) == mutant.after]
    if place is None:
        setattr(parent, name, new)
    else:
        getattr(parent, name)[place] = new
    return ast.unparse(ast.fix_missing_locations(tree))


def is_caught(mutant: Mutant, folder: Path, seconds: dict[str, float]) -> bool:
    path = folder / "headsync" / mutant.file
    for tests in own_tests(mutant.file):
        if tests not in seconds:  # the unchanged package first, for the time that the tests take
            start = time.monotonic()
            if run_tests(folder, [tests]).returncode:
                sys.exit(f"{tests}: these tests fail without a mutation; fix that first")
            seconds[tests] = time.monotonic() - start
        original = path.read_text(encoding="utf-8")
        path.write_text(apply(mutant), encoding="utf-8")
        try:
            if run_tests(folder, [tests], 30 + 5 * seconds[tests]).returncode:
                return True
        except subprocess.TimeoutExpired:
            return True
        finally:
            path.write_text(original, encoding="utf-8")
    say(f"SURVIVED  {mutant.file}:{mutant.line}: {mutant.before}  ->  {mutant.after}")
    return False


def own_tests(file: str) -> list[str]:
    """The test file of a module, if there is one, and the tests of its package."""
    module = Path("tests") / Path(file).parent / f"test_{Path(file).name}"
    package = Path("tests") / Path(file).parent
    return [str(path) for path in (module, package) if (ROOT / path).exists()]


def read_results(path: Path) -> dict[str, bool]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["key"]: result["caught"] for result in map(json.loads, lines)}


def report(selected: list[Mutant], caught: dict[str, bool]) -> int:
    """Print the survivors by file; 1 if there are any."""
    survivors = [mutant for mutant in selected if not caught[mutant.key]]
    for file in dict.fromkeys(mutant.file for mutant in selected):
        own = [mutant for mutant in survivors if mutant.file == file]
        say(f"{file}: {sum(mutant.file == file for mutant in selected)} mutants, {len(own)} survived")
        for mutant in own:
            say(f"  line {mutant.line}: {mutant.before.splitlines()[0]}  ->  {mutant.after.splitlines()[0]}")
    say(f"{len(selected)} mutants, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
