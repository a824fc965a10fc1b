"""Lists of transcripts: one utterance per line, its id first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from headsync.corpora.preparation import Problem, ProblemKind


class Transcripts(NamedTuple):
    """The usable texts of a list by id, and every id in it."""

    texts: dict[str, str]
    named: set[str]


def read_transcripts(
    paths: Iterable[Path], part: str, problems: list[Problem], clean: Callable[[str], str] = str.strip
) -> Transcripts:
    """The text of every id in the lists; duplicates, empty texts and unreadable lists are added to the problems."""
    texts: dict[str, str] = {}
    named: set[str] = set()
    for path in paths:
        lines = ((name, clean(text)) for name, text in split_lines(path, part, problems))
        found = trusted(lines, path, part, problems)
        texts |= found.texts
        named |= found.named
    return Transcripts(texts, named)


def trusted(lines: Iterator[tuple[str, str]], path: Path, part: str, problems: list[Problem]) -> Transcripts:
    """The text of every id that has exactly one; of two different texts neither is kept."""
    found: dict[str, str] = {}
    refused = set()
    for name, text in lines:
        if name in found:
            same = found[name] == text
            refused |= set() if same else {name}
            what = "listed twice with the same text; one is kept." if same else "listed with two different texts."
            problems.append(Problem(part, ProblemKind.DUPLICATE, name, f"{path}: {what}"))
        elif not text:
            problems.append(Problem(part, ProblemKind.EMPTY_TRANSCRIPT, name, f"{path}: this id has no words."))
            refused.add(name)
        else:
            found[name] = text
    return Transcripts({name: text for name, text in found.items() if name not in refused}, found.keys() | refused)


def split_lines(path: Path, part: str, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """The first word of every line, and the rest."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        what = f"{path}: this list cannot be read ({error}); download it again."
        problems.append(Problem(part, ProblemKind.UNREADABLE_LIST, path.name, what))
        return
    for line in lines:
        if words := line.split(maxsplit=1):
            yield words[0], words[1].strip() if len(words) > 1 else ""
