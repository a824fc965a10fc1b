"""Kaldi data folders.

A folder contains `wav.scp` and `text`, and optionally `utt2spk` and `segments`. A line of wav.scp may end in a pipe. No
command is run; if a command only decodes one file, that file is read instead.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

from headsync.corpora.audio_files import cut_segment, decoded_seconds
from headsync.corpora.manifest import Progress
from headsync.corpora.preparation import (
    CheckedAudio,
    CorpusEntry,
    Part,
    Prepared,
    ProblemKind,
    UnusableError,
    write_parts,
)  # fmt: skip
from headsync.corpora.report import CorpusReport, finish, refuse_other_corpus
from headsync.corpora.transcripts import read_transcripts, split_lines, trusted
from headsync.errors import DataError

# Programs that decode, and their options that do nothing else; any other word is the file.
_HARMLESS = {"cat": set[str](), "flac": {"-c", "-d", "-s"}, "sox": {"-t", "wav", "-"}}


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> CorpusReport:
    """Write a manifest to `out` for the data folder, or for each data folder in it; segments are written as FLAC."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "kaldi")
    folders = [source] if (source / "wav.scp").is_file() else sorted(path.parent for path in source.glob("*/wav.scp"))
    if not folders:
        raise DataError(f"{source}: found no wav.scp there or in a folder below; pass a Kaldi data folder.")
    parts = [_part(folder) for folder in folders]
    prepared = [  # one by one: data folders may share ids
        write_parts([part], out, partial(_check, out / part.name), workers=workers, progress=progress) for part in parts
    ]
    utterances = {name: found for one in prepared for name, found in one.utterances.items()}
    problems = [problem for one in prepared for problem in one.problems]
    return finish("kaldi", source, out, parts, Prepared(utterances, problems))


def _part(folder: Path) -> Part:
    """The entries of a data folder: its lists, joined by utterance id."""
    part = Part(Path(os.path.abspath(folder)).name, [])
    texts = read_transcripts([folder / "text"], part.name, part.problems)
    recordings = _read(folder / "wav.scp", part)
    speakers = _read(folder / "utt2spk", part) if (folder / "utt2spk").is_file() else {}
    spans = dict(_spans(folder, part, recordings))
    for name, (recording, span) in spans.items():
        if recording not in recordings:
            what = f"{folder / 'segments'}: the recording {recording} is not in wav.scp."
            part.omit(ProblemKind.MISSING_AUDIO, name, what)
        elif name in texts.texts:
            audio = _file(recordings[recording], folder)
            part.entries.append(CorpusEntry(name, audio, texts.texts[name], speakers.get(name, ""), span))
        elif name not in texts.named:
            part.omit(ProblemKind.NO_TRANSCRIPT, name, f"{folder / 'text'}: this id is missing.")
    for name in texts.texts.keys() - spans.keys() - {problem.name for problem in part.problems}:
        what = f"{folder}: this id has a text, but no recording or segment."
        part.omit(ProblemKind.MISSING_AUDIO, name, what)
    return part


def _read(path: Path, part: Part) -> dict[str, str]:
    return trusted(split_lines(path, part.name, part.problems), path, part.name, part.problems).texts


def _spans(
    folder: Path, part: Part, recordings: dict[str, str]
) -> Iterator[tuple[str, tuple[str, tuple[float, float] | None]]]:
    """Utterance, recording, start and end of every line of `segments`; without it every recording is an utterance."""
    path = folder / "segments"
    if not path.is_file():
        yield from ((name, (name, None)) for name in recordings)
        return
    for name, rest in _read(path, part).items():
        try:
            recording, start, end = rest.split()[:3]
            yield name, (recording, (float(start), float(end)))
        except ValueError:
            part.omit(ProblemKind.UNREADABLE_LIST, name, f"{path}: {rest!r} is not RECORDING START END.")


def _file(line: str, folder: Path) -> Path:
    """The file of a line of wav.scp, relative to the folder, to its parent or to the working directory.

    The file of a pipe is the file that it decodes; any other pipe is returned unchanged and refused later.
    """
    name = _decoded(line) if line.endswith("|") else line
    if name is None:
        return Path(line)
    places = [folder, folder.parent, Path()]
    found = (place / name for place in places if (place / name).is_file())
    return Path(os.path.abspath(next(found, folder / name)))


def _decoded(command: str) -> str | None:
    """The file that a pipe decodes; None if the pipe may do anything else."""
    try:
        program, *words = shlex.split(command.removesuffix("|"))
    except ValueError:
        return None
    harmless = _HARMLESS.get(Path(program).name)
    files = [word for word in words if harmless is not None and word not in harmless]
    return files[0] if len(files) == 1 and not files[0].startswith("-") else None


def _check(out: Path, entry: CorpusEntry) -> CheckedAudio:
    if str(entry.audio).endswith("|"):
        what = f"{entry.audio}: commands are not run; write the output of this one to a file, and list the file."
        raise UnusableError(ProblemKind.UNREADABLE, what)
    if entry.span is None:
        return CheckedAudio(entry.audio, decoded_seconds(entry.audio, None))
    return cut_segment(out / f"{quote(entry.id, safe=' ')}.flac", entry)
