"""The report on a prepared corpus: sizes, omissions with their reasons, and the number of output classes.

OUT/report.json contains the full report; the summary is printed. A second run into the same folder replaces the entries
of the parts that it prepares and keeps the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from headsync._atomic_write import in_one_move
from headsync._parse import parse_json
from headsync.corpora.manifest import Utterance
from headsync.corpora.preparation import Expected, Part, Prepared, Problem
from headsync.errors import DataError

_SHOWN = 3  # problems of each kind in the summary
_REPORT = "report.json"


class Classes(NamedTuple):
    """The number of output classes of the training texts, counted as in the published recipe."""

    found: int
    published: int
    counted: str  # what the number includes


class Size(NamedTuple):
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


class CorpusReport(NamedTuple):
    corpus: str
    source: str
    sizes: dict[str, Size]
    problems: list[Problem]
    classes: Classes | None = None
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(problem.kind for problem in self.problems).items()))

    def save(self, out: Path) -> None:
        """Write report.json; parts of earlier runs that this run does not contain are kept."""
        earlier = _read(out / _REPORT) or {"parts": {}, "problems": []}
        others = {name: part for name, part in earlier["parts"].items() if name not in self.sizes}
        content = self._content()
        content["parts"] = {**others, **content["parts"]}
        content["problems"] = [p for p in earlier["problems"] if p["part"] in others] + content["problems"]
        content["counts"] = dict(sorted(Counter(problem["kind"] for problem in content["problems"]).items()))
        with in_one_move(out / _REPORT) as unfinished:
            unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def summary(self) -> str:
        lines = [_row(name, size) for name, size in self.sizes.items()]
        for kind, count in self.counts.items():
            lines.append(f"{kind}: {count}")
            same = [problem for problem in self.problems if problem.kind == kind]
            lines += [f"  {problem.name}: {problem.what}" for problem in same[:_SHOWN]]
            lines += [f"  and {count - _SHOWN} more"] if count > _SHOWN else []
        lines += [self.explanation] if self.classes else []
        return "\n".join([*lines, *self.notes])

    @property
    def explanation(self) -> str:
        """The number of output classes, the published number, and the reason for a difference."""
        assert self.classes is not None
        found = f"output classes: {self.classes.found} ({self.classes.counted}), published {self.classes.published}"
        if self.classes.found == self.classes.published:
            return f"{found}: equal."
        partial = {name: size for name, size in self.sizes.items() if name.startswith("train") and not size.complete}
        if partial:
            return f"{found}: {'; '.join(_share(name, size) for name, size in partial.items())}."
        return f"{found}: all utterances are present, so the transcripts differ from the published ones."

    def _content(self) -> dict[str, Any]:
        sizes = {name: {"source": self.source, **_asdict(size)} for name, size in self.sizes.items()}
        problems = [problem._asdict() for problem in self.problems]
        content = {"corpus": self.corpus, "parts": sizes, "counts": self.counts}
        classes = {**self.classes._asdict(), "explanation": self.explanation} if self.classes else None
        return {**content, "classes": classes, "notes": list(self.notes), "problems": problems}


def refuse_other_corpus(out: Path, corpus: str) -> None:
    """A folder contains one corpus: a second run may extend it, but not mix it with another."""
    report = _read(out / _REPORT)
    if report and report["corpus"] != corpus:
        raise DataError(f"{out}: this folder was made from {report['corpus']}; choose an empty folder for {corpus}.")


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        report = parse_json(path.read_text(encoding="utf-8"))
        return {"corpus": report["corpus"], "parts": report["parts"], "problems": report["problems"]}
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: this report cannot be read; delete it, or choose an empty folder.") from None


def finish(
    corpus: str, source: Path, out: Path, parts: list[Part], prepared: Prepared,
    classes: Classes | None = None, notes: tuple[str, ...] = (),
) -> CorpusReport:  # fmt: skip
    """Save the report of a run; a corpus without any usable utterance is an error that names the report."""
    sizes = {part.name: Size.of(prepared.utterances[part.name], part.expected) for part in parts}
    report = CorpusReport(corpus, str(source), sizes, prepared.problems, classes, notes)
    report.save(out)
    if not any(size.utterances for size in report.sizes.values()):
        raise DataError(f"{report.source}: no utterance can be used; see the reasons in {out / _REPORT}.")
    return report


def characters(texts: Iterable[str], symbols: Iterable[str] = ()) -> set[str]:
    """The characters of the texts; a word that is a symbol counts as one character."""
    wholes, found = set(symbols), set()
    for text in texts:
        words = text.split()
        found |= {word for word in words if word in wholes}
        found |= {sign for word in words if word not in wholes for sign in word}
        found |= {" "} if len(words) > 1 else set()
    return found


def _row(name: str, size: Size) -> str:
    plural = "s" if size.speakers != 1 else ""
    content = f"{size.utterances} utterances, {size.seconds / 3600:.2f} h, {size.speakers} speaker{plural}"
    return f"{name}: {content}" if size.complete else f"{name}: {content} ({_share(name, size)})"


def _share(name: str, size: Size) -> str:
    assert size.expected is not None
    found = f"only {size.utterances} of {size.expected.utterances} utterances"
    if size.expected.speakers is not None and size.speakers < size.expected.speakers:
        found += f" and {size.speakers} of {size.expected.speakers} speakers"
    return f"{found} of {name} are present"


def _asdict(size: Size) -> dict[str, Any]:
    return {**size._asdict(), "expected": size.expected._asdict() if size.expected else None}
