"""What each corpus goes through: it is listed, all its audio is heard, and what is right becomes manifests.

A corpus's own module lists its parts; here every recording is heard to its end, and an utterance either is written or
becomes a problem with a name. Nothing is left out in silence. What has been heard is remembered in OUT/heard.jsonl, so
that a second run, or one after an interruption, does only what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headsync.data.manifest import Utterance, write_manifest
from headsync.errors import AudioError, DataError

Progress = Callable[[int, int], None]

MISSING = "missing audio"
UNTRANSCRIBED = "no transcript"
EMPTY_TEXT = "empty transcript"
EMPTY_FILE = "empty file"
UNREADABLE = "unreadable"
DAMAGED = "wrong checksum"
RATE = "wrong sample rate"
DOUBLED = "doubled"
LIST = "unreadable list"

_AT_A_TIME = 64  # utterances that are handed to the threads at once


class Entry(NamedTuple):
    """An utterance as a corpus lists it, before anybody has heard it."""

    id: str
    audio: Path
    text: str
    speaker: str = ""
    span: tuple[float, float] | None = None  # start and end in the recording, in seconds; none: all of it


class Problem(NamedTuple):
    """Something that was left out, and why."""

    part: str
    kind: str
    name: str  # of the utterance, or of a file
    what: str


Job = tuple[str, Entry]  # with the name of the part


class Expected(NamedTuple):
    """What the whole of a part holds, as published."""

    utterances: int
    speakers: int | None = None


@dataclass(frozen=True)
class Part:
    """One part of a corpus: what is to be heard, and what was wrong already in the lists."""

    name: str
    entries: list[Entry]
    problems: list[Problem] = field(default_factory=list)
    expected: Expected | None = None


class Heard(NamedTuple):
    """Where the audio of an utterance lies in the end, and its length."""

    audio: Path
    seconds: float


class UnusableError(DataError):
    """A recording that cannot be used; the kind is what such cases are counted by."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class Prepared(NamedTuple):
    """What became of the parts."""

    utterances: dict[str, list[Utterance]]
    problems: list[Problem]


def write_parts(
    parts: list[Part], out: Path, hear: Callable[[Entry], Heard], *, workers: int = 1, progress: Progress | None = None
) -> Prepared:
    """Hear every utterance and write a manifest for each part; an id stands once in the whole corpus."""
    out.mkdir(parents=True, exist_ok=True)
    jobs, doubled = _once([(part.name, entry) for part in parts for entry in part.entries])
    problems = [*(problem for part in parts for problem in part.problems), *doubled]
    utterances: dict[str, list[Utterance]] = {part.name: [] for part in parts}
    for done, (name, entry, found) in enumerate(_hear_all(jobs, out / "heard.jsonl", hear, workers), 1):
        if isinstance(found, Heard):
            utterances[name].append(Utterance(entry.id, found.audio, entry.text, found.seconds, entry.speaker))
        else:
            problems.append(Problem(name, found.kind, entry.id, str(found)))
        if progress:
            progress(done, len(jobs))
    for name, kept in utterances.items():
        write_manifest(out / f"{name}.jsonl", sorted(kept, key=lambda one: one.id))
    return Prepared(utterances, sorted(problems))


def _once(jobs: list[Job]) -> tuple[list[Job], list[Problem]]:
    """The first of every id, and the others as problems."""
    first: dict[str, Job] = {}
    doubled = []
    for part, entry in jobs:
        if entry.id in first:
            taken = first[entry.id][1].audio
            doubled.append(
                Problem(part, DOUBLED, entry.id, f"{entry.audio}: the id is that of {taken}, which is kept.")
            )
        else:
            first[entry.id] = (part, entry)
    return list(first.values()), doubled


def _hear_all(
    jobs: list[Job], memory: Path, hear: Callable[[Entry], Heard], workers: int
) -> Iterator[tuple[str, Entry, Heard | UnusableError]]:
    """Every utterance in its order, by one thread or several; decoders work outside the interpreter's lock."""
    remembered = _recall(memory)

    def one(entry: Entry) -> Heard | UnusableError:
        known = remembered.get(_key(entry))
        if known and known.is_so(entry):
            return known.heard
        try:
            return hear(entry)
        except UnusableError as unusable:
            return unusable
        except AudioError as error:
            return UnusableError(UNREADABLE, str(error))

    with ThreadPoolExecutor(workers) as pool, memory.open("a", encoding="utf-8") as file:
        for first in range(0, len(jobs), _AT_A_TIME):
            batch = jobs[first : first + _AT_A_TIME]
            for (part, entry), found in zip(batch, pool.map(one, (entry for _, entry in batch)), strict=True):
                if isinstance(found, Heard) and remembered.get(_key(entry)) != (now := _remember(entry, found)):
                    file.write(json.dumps([_key(entry), *now[:2], str(found.audio), found.seconds]) + "\n")
                yield part, entry, found


class _Remembered(NamedTuple):
    size: int
    modified: int
    heard: Heard

    def is_so(self, entry: Entry) -> bool:
        """Whether the file is still the one that was heard, and what was made from it is there."""
        return self[:2] == _stamp(entry.audio) and self.heard.audio.is_file()


def _recall(memory: Path) -> dict[str, _Remembered]:
    """What an earlier run has heard; a last line that was cut off is heard again."""
    found: dict[str, _Remembered] = {}
    for line in memory.read_text(encoding="utf-8").split("\n") if memory.exists() else ():
        try:
            key, size, modified, audio, seconds = json.loads(line)
            found[key] = _Remembered(size, modified, Heard(Path(audio), seconds))
        except ValueError:
            continue
    return found


def _remember(entry: Entry, heard: Heard) -> _Remembered:
    return _Remembered(*_stamp(entry.audio), heard)


def _key(entry: Entry) -> str:
    return f"{entry.audio} {entry.span}" if entry.span else str(entry.audio)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return status.st_size, status.st_mtime_ns
