"""The report on a prepared corpus: how much there is, what was left out and why, and the number of output classes.

Written whole to OUT/report.json; the summary is for the screen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from headsync.data.corpus import Expected, Part, Prepared, Problem
from headsync.data.manifest import Utterance
from headsync.errors import DataError

SHOWN = 3  # problems of a kind that the summary shows
REPORT = "report.json"


class Classes(NamedTuple):
    """The output classes of the texts to train on, counted as the published recipe counts them."""

    found: int
    published: int
    counted: str  # what is among them


class Size(NamedTuple):
    """How much a part holds."""

    utterances: int
    seconds: float
    speakers: int
    expected: Expected | None

    @classmethod
    def of(cls, utterances: list[Utterance], expected: Expected | None) -> Size:
        seconds = sum(one.seconds for one in utterances)
        return cls(len(utterances), round(seconds, 2), len({one.speaker for one in utterances}), expected)

    @property
    def complete(self) -> bool:
        return self.expected is None or self.utterances >= self.expected.utterances


class Report(NamedTuple):
    """Everything there is to say about a prepared corpus."""

    corpus: str
    source: str
    sizes: dict[str, Size]
    problems: list[Problem]
    classes: Classes | None = None
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many problems of each kind."""
        return dict(sorted(Counter(problem.kind for problem in self.problems).items()))

    def save(self, out: Path) -> None:
        text = json.dumps(self._content(), indent=1, ensure_ascii=False) + "\n"
        (out / REPORT).write_text(text, encoding="utf-8")

    def summary(self) -> str:
        """The report for the screen."""
        lines = [_row(name, size) for name, size in self.sizes.items()]
        for kind, count in self.counts.items():
            lines.append(f"{kind}: {count}")
            same = [problem for problem in self.problems if problem.kind == kind]
            lines += [f"  {problem.name}: {problem.what}" for problem in same[:SHOWN]]
            lines += [f"  and {count - SHOWN} more"] if count > SHOWN else []
        lines += [self.explanation] if self.classes else []
        return "\n".join([*lines, *self.notes])

    @property
    def explanation(self) -> str:
        """The number of output classes beside the published one, and where a difference comes from."""
        assert self.classes is not None
        told = f"output classes: {self.classes.found} ({self.classes.counted}), published {self.classes.published}"
        if self.classes.found == self.classes.published:
            return f"{told}: the same."
        partial = {name: size for name, size in self.sizes.items() if name.startswith("train") and not size.complete}
        if partial:
            return f"{told}: {'; '.join(_share(name, size) for name, size in partial.items())}."
        return f"{told}: all utterances are here, so the transcripts differ from the published ones."

    def _content(self) -> dict[str, Any]:
        sizes = {name: _asdict(size) for name, size in self.sizes.items()}
        problems = [problem._asdict() for problem in self.problems]
        content = {"corpus": self.corpus, "source": self.source, "parts": sizes, "counts": self.counts}
        classes = {**self.classes._asdict(), "explanation": self.explanation} if self.classes else None
        return {**content, "classes": classes, "notes": list(self.notes), "problems": problems}


def refuse_other_corpus(out: Path, corpus: str) -> None:
    """A folder holds one corpus; a second run may complete it, but not mix it with another."""
    path = out / REPORT
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["corpus"]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: this report cannot be read; delete it, or name an empty folder.") from None
    if found != corpus:
        raise DataError(f"{out}: this folder was made from {found}; name an empty folder for {corpus}.")


def make_report(corpus: str, source: Path, parts: list[Part], prepared: Prepared) -> Report:
    """The report on what was prepared, without classes and notes."""
    sizes = {part.name: Size.of(prepared.utterances[part.name], part.expected) for part in parts}
    return Report(corpus, str(source), sizes, prepared.problems)


def finish(report: Report, out: Path) -> Report:
    """Save the report; a corpus of which nothing is usable is an error that names the report."""
    report.save(out)
    if not any(size.utterances for size in report.sizes.values()):
        raise DataError(f"{report.source}: no utterance can be used; {out / REPORT} says why.")
    return report


def characters(texts: Iterable[str], symbols: Iterable[str] = ()) -> set[str]:
    """The characters of texts, words that are symbols counting as one."""
    wholes, found = set(symbols), set()
    for text in texts:
        words = text.split()
        found |= {word for word in words if word in wholes}
        found |= {sign for word in words if word not in wholes for sign in word}
        found |= {" "} if len(words) > 1 else set()
    return found


def _row(name: str, size: Size) -> str:
    plural = "s" if size.speakers != 1 else ""
    held = f"{size.utterances} utterances, {size.seconds / 3600:.2f} h, {size.speakers} speaker{plural}"
    return f"{name}: {held}" if size.complete else f"{name}: {held} ({_share(name, size)})"


def _share(name: str, size: Size) -> str:
    assert size.expected is not None
    told = f"only {size.utterances} of {size.expected.utterances} utterances"
    if size.expected.speakers is not None and size.speakers < size.expected.speakers:
        told += f" and {size.speakers} of {size.expected.speakers} speakers"
    return f"{told} of {name} are here"


def _asdict(size: Size) -> dict[str, Any]:
    return {**size._asdict(), "expected": size.expected._asdict() if size.expected else None}
