"""Common Voice: a release or one of its language folders, with lists (*.tsv) and clips/*.mp3.

Dev and test are the published lists, if the release has them, and train is train.tsv, or all of validated.tsv on
request. A release without them is split by speakers. In all cases no speaker and no sentence of dev or test remains in
train. Lists of clip ids (`ids`) select exactly these clips instead; each list is a part named after its file.

The first release (cv-valid-train.csv, ...) has no speaker ids: its parts are those of its lists.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headsync.corpora.audio_files import check_at_rate
from headsync.corpora.manifest import Progress
from headsync.corpora.preparation import CorpusEntry, Part, Problem, ProblemKind, write_parts
from headsync.corpora.report import CorpusReport, finish, refuse_other_corpus
from headsync.corpora.splits import part_of, separate
from headsync.errors import DataError

_LISTS = ("validated", "train", "dev", "test", "other", "invalidated")
_FIRST_RELEASE = {"train": "cv-valid-train", "dev": "cv-valid-dev", "test": "cv-valid-test"}
NO_SPEAKERS = "This release has no speaker ids: speakers of train, dev and test may overlap."


class _Clip(NamedTuple):
    id: str  # the name of the clip without its suffix
    audio: Path
    text: str
    speaker: str


class _Release(NamedTuple):
    lists: dict[str, dict[str, _Clip]]  # by the name of the list, then by clip id
    problems: list[Problem]

    def find(self, name: str) -> _Clip | None:
        return next((clips[name] for clips in self.lists.values() if name in clips), None)


def prepare(
    source: Path,
    out: Path,
    *,
    ids: Sequence[Path] = (),
    validated: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> CorpusReport:
    """Write the manifests of train, dev and test, or of each list of clip ids; the audio stays in place."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "commonvoice")
    release = _read_release(source)
    parts = [_listed_part(path, release, source) for path in ids] or _parts(release, validated)
    parts[0].problems.extend(release.problems)
    separate(parts)
    prepared = write_parts(parts, out, partial(check_at_rate, None), workers=workers, progress=progress)
    known_speakers = any(entry.speaker for part in parts for entry in part.entries)
    return finish("commonvoice", source, out, parts, prepared, notes=() if known_speakers else (NO_SPEAKERS,))


def _read_release(source: Path) -> _Release:
    """The lists in the folder, or in the only folder below it that has lists."""
    folders = [source, *sorted(path for path in source.glob("*") if path.is_dir())] if source.is_dir() else []
    for folder in folders:
        problems: list[Problem] = []
        paths = {name: folder / f"{name}.tsv" for name in _LISTS}
        paths = {name: path for name, path in paths.items() if path.is_file()}
        paths = paths or {
            name: folder / f"{stem}.csv" for name, stem in _FIRST_RELEASE.items() if (folder / f"{stem}.csv").is_file()
        }
        if paths:
            return _Release({name: _read_list(path, name, problems) for name, path in paths.items()}, problems)
    raise DataError(
        f"{source}: found no list such as validated.tsv; download a release from "
        "https://commonvoice.mozilla.org/datasets and pass the folder with clips/."
    )


def _read_list(path: Path, name: str, problems: list[Problem]) -> dict[str, _Clip]:
    clips = {}
    for number, row in enumerate(_rows(path, name, problems), 2):
        file, text = row.get("path") or row.get("filename"), row.get("sentence", row.get("text"))
        if not file or text is None:
            what = f"{path}: row {number} has no path or no sentence."
            problems.append(Problem(name, ProblemKind.UNREADABLE_LIST, f"{path.name} row {number}", what))
            continue
        file = file if "." in Path(file).name else f"{file}.mp3"  # some releases omit the suffix
        folder = path.parent if "/" in file else path.parent / "clips"
        clip = _Clip(_id(file), folder / file, " ".join(text.split()), row.get("client_id") or "")
        clips[clip.id] = clip
    return clips


def _id(file: str) -> str:
    """The name of a clip without its suffix; the first release numbers the clips of each list from 0."""
    return os.path.splitext(Path(file))[0]


def _rows(path: Path, name: str, problems: list[Problem]) -> Iterator[dict[str, str]]:
    """The rows of a list by column name; sentences in TSV files contain unescaped quotes."""
    tabs = path.suffix == ".tsv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if tabs:
                yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            else:
                yield from csv.DictReader(file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        what = f"{path}: this list cannot be read ({error}); download it again."
        problems.append(Problem(name, ProblemKind.UNREADABLE_LIST, path.name, what))


def _parts(release: _Release, validated: bool) -> list[Part]:
    """The published parts; without dev.tsv and test.tsv, the speakers of validated.tsv are split."""
    parts = {name: Part(name, []) for name in ("train", "dev", "test")}
    published = "dev" in release.lists and "test" in release.lists
    train = "validated" if validated or "train" not in release.lists else "train"
    if train not in release.lists:
        raise DataError(f"found the lists {', '.join(release.lists)}, but not {train}.tsv; download it.")
    for name in ("test", "dev", train) if published else (train,):
        for clip in release.lists[name].values():
            part = parts[{train: "train"}.get(name, name)] if published else parts[part_of(clip.speaker)]
            _add(part, clip)
    if not published and not any(clip.speaker for clip in release.lists[train].values()):
        raise DataError("the list has no client_id to separate speakers by; pass lists of clip ids with --ids.")
    return list(parts.values())


def _listed_part(path: Path, release: _Release, source: Path) -> Part:
    """The part of a list of clip ids, one per line, with or without suffix."""
    part = Part(path.stem, [])
    try:
        names = [_id(line.strip()) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: this list of clip ids cannot be read ({error}).") from None
    for name in dict.fromkeys(names):
        clip = release.find(name)
        if clip:
            _add(part, clip)
        else:
            what = f"{source}: this clip of {path.name} is in no list of the release."
            part.omit(ProblemKind.NO_TRANSCRIPT, name, what)
    return part


def _add(part: Part, clip: _Clip) -> None:
    if clip.text:
        part.entries.append(CorpusEntry(clip.id, clip.audio, clip.text, clip.speaker))
    else:
        part.omit(ProblemKind.EMPTY_TRANSCRIPT, clip.id, f"{clip.audio}: the sentence is empty.")
