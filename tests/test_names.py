"""A public class or type alias has one definition: the same name does not mean two things in two modules."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import headsync

PACKAGE = Path(headsync.__file__).parent


def defined(tree: ast.Module) -> Iterator[str]:
    """Public top-level classes, and public top-level names in capitals and small letters, which are aliases."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from [node.name] * (not node.name.startswith("_"))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name[0].isupper() and not name.isupper())


def repeated(sources: dict[str, str]) -> dict[str, list[str]]:
    """The names that several modules define, with these modules."""
    modules = defaultdict(list)
    for module, source in sources.items():
        for name in defined(ast.parse(source)):
            modules[name].append(module)
    return {name: places for name, places in modules.items() if len(places) > 1}


def test_each_class_and_alias_is_defined_once() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 40
    assert repeated({path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}) == {}


def test_a_second_definition_is_found() -> None:
    first = "class Window: ...\nclass _Own: ...\nSIZE = 1\nState = tuple[int, ...]\nT = 1"
    second = "Window: object = int\nclass _Own: ...\nSIZE = 2\nT = 2\nfrom first import State"
    assert repeated({"first": first, "second": second}) == {"Window": ["first", "second"]}
