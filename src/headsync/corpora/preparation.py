"""The common part of corpus preparation: check every recording, write manifests, and report every omission.

The module of a corpus lists its parts. Here every recording is decoded to its end. An utterance is either written to a
manifest or reported as a problem. OUT/checked.jsonl caches the checked files, so that a second run, or a run after an
interruption, checks only new and changed files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from headsync._atomic_write import naming
from headsync.corpora.manifest import Progress, Utterance, write_manifest
from headsync.errors import AudioError, DataError


class ProblemKind(StrEnum):
    """Why an utterance or a list of a corpus was omitted."""

    MISSING_AUDIO = "missing audio"
    NO_TRANSCRIPT = "no transcript"
    EMPTY_TRANSCRIPT = "empty transcript"
    EMPTY_FILE = "empty file"
    UNREADABLE = "unreadable"
    WRONG_CHECKSUM = "wrong checksum"
    WRONG_SAMPLE_RATE = "wrong sample rate"
    DUPLICATE = "duplicate"
    UNREADABLE_LIST = "unreadable list"
    EXCLUDED = "excluded"


_CACHE = "checked.jsonl"
_CHUNK = 64  # utterances submitted to the threads at once


class CorpusEntry(NamedTuple):
    """An utterance as a corpus lists it; its audio has not been checked."""

    id: str
    audio: Path
    text: str
    speaker: str = ""
    span: tuple[float, float] | None = None  # start and end in seconds; None: the whole recording


class Problem(NamedTuple):
    part: str
    kind: ProblemKind
    name: str  # of the utterance or the file
    what: str


class Expected(NamedTuple):
    """The published size of a part."""

    utterances: int
    speakers: int | None = None


@dataclass(frozen=True)
class Part:
    """One part of a corpus: the entries to check, and the problems already found in its lists."""

    name: str
    entries: list[CorpusEntry]
    problems: list[Problem] = field(default_factory=list)
    expected: Expected | None = None

    def omit(self, kind: ProblemKind, name: str, what: str) -> None:
        """Add a problem: an utterance or a list that is not used."""
        self.problems.append(Problem(self.name, kind, name, what))


class CheckedAudio(NamedTuple):
    audio: Path
    seconds: float


class UnusableError(DataError):
    """A recording that cannot be used; the report counts problems by `kind`."""

    def __init__(self, kind: ProblemKind, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class Prepared(NamedTuple):
    """The written utterances of each part, and all problems."""

    utterances: dict[str, list[Utterance]]
    problems: list[Problem]


Check = Callable[[CorpusEntry], CheckedAudio]
_PartEntry = tuple[str, CorpusEntry]  # the name of the part, and the entry


def write_parts(
    parts: list[Part], out: Path, check: Check, *, workers: int = 1, progress: Progress | None = None
) -> Prepared:
    """Check every utterance and write a manifest for each part; ids are unique in the corpus."""
    out.mkdir(parents=True, exist_ok=True)
    jobs, duplicates = _without_duplicates([(part.name, entry) for part in parts for entry in part.entries])
    problems = [*(problem for part in parts for problem in part.problems), *duplicates]
    utterances: dict[str, list[Utterance]] = {part.name: [] for part in parts}
    for done, (name, entry, found) in enumerate(_check_all(jobs, out / _CACHE, check, workers), 1):
        if isinstance(found, CheckedAudio):
            utterances[name].append(Utterance(entry.id, found.audio, entry.text, found.seconds, entry.speaker))
        else:
            problems.append(Problem(name, found.kind, entry.id, str(found)))
        if progress:
            progress(done, len(jobs))
    for name, kept in utterances.items():
        write_manifest(out / f"{name}.jsonl", sorted(kept, key=lambda one: one.id))
    return Prepared(utterances, sorted(problems))


def _without_duplicates(jobs: list[_PartEntry]) -> tuple[list[_PartEntry], list[Problem]]:
    """The first entry of every id; if one recording has two different texts, neither is kept."""
    first: dict[str, _PartEntry] = {}
    ambiguous: set[str] = set()
    problems = []
    for part, entry in jobs:
        kept = first.setdefault(entry.id, (part, entry))[1]
        if kept is entry:
            continue
        if (kept.audio, kept.span) == (entry.audio, entry.span) and kept.text != entry.text:
            ambiguous.add(entry.id)
            what = f"{entry.audio}: listed with two different texts; neither is kept."
        else:
            what = f"{entry.audio}: the id is that of {kept.audio}, which is kept."
        problems.append(Problem(part, ProblemKind.DUPLICATE, entry.id, what))
    return [job for job in first.values() if job[1].id not in ambiguous], problems


def _check_all(
    jobs: list[_PartEntry], cache: Path, check: Check, workers: int
) -> Iterator[tuple[str, CorpusEntry, CheckedAudio | UnusableError]]:
    """Every utterance in its order; decoders release the interpreter lock, so threads help."""
    cached = _read_cache(cache)

    def one(entry: CorpusEntry) -> CheckedAudio | UnusableError:
        known = cached.get(_key(entry))
        if known and known.is_valid(entry):
            return known.checked
        try:
            return check(entry)
        except UnusableError as unusable:
            return unusable
        except AudioError as error:
            return UnusableError(ProblemKind.UNREADABLE, str(error))

    with ThreadPoolExecutor(workers) as pool, naming(cache), cache.open("a", encoding="utf-8") as file:
        for first in range(0, len(jobs), _CHUNK):
            chunk = jobs[first : first + _CHUNK]
            for (part, entry), found in zip(chunk, pool.map(one, (entry for _, entry in chunk)), strict=True):
                if isinstance(found, CheckedAudio):
                    now = _CachedCheck(*_stamp(entry.audio), found)
                    if cached.get(_key(entry)) != now:
                        file.write(json.dumps([_key(entry), *now[:2], str(found.audio), found.seconds]) + "\n")
                yield part, entry, found


class _CachedCheck(NamedTuple):
    size: int
    modified: int
    checked: CheckedAudio

    def is_valid(self, entry: CorpusEntry) -> bool:
        """Whether the source file is unchanged and the checked file exists."""
        return self[:2] == _stamp(entry.audio) and self.checked.audio.is_file()


def _read_cache(path: Path) -> dict[str, _CachedCheck]:
    """The files that earlier runs have checked; an incomplete last line is ignored."""
    found: dict[str, _CachedCheck] = {}
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else ():
        try:
            key, size, modified, audio, seconds = json.loads(line)
            found[key] = _CachedCheck(size, modified, CheckedAudio(Path(audio), seconds))
        except ValueError:
            continue
    return found


def _key(entry: CorpusEntry) -> str:
    return f"{entry.audio} {entry.span}" if entry.span else str(entry.audio)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return status.st_size, status.st_mtime_ns
