"""Kaldi data folders: the form in which many corpora and recipes have their lists.

A folder holds `wav.scp` and `text`, and may hold `utt2spk` and `segments`. A line of wav.scp may end in a pipe. No
command is ever run; but where all it does is to decode one file, that file is read instead.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import soundfile

from headsync.audio import mix_down
from headsync.data.corpus import (
    LIST,
    MISSING,
    UNREADABLE,
    UNTRANSCRIBED,
    Entry,
    Heard,
    Part,
    Prepared,
    Problem,
    Progress,
    UnusableError,
    write_parts,
)
from headsync.data.corpus_report import Report, finish, make_report, refuse_other_corpus
from headsync.data.listening import listen, refuse_absent
from headsync.data.transcripts import read_transcripts, split_lines, trusted
from headsync.errors import DataError
from headsync.writing import in_one_move

# Programs that may do no more than decode, and the words that leave it at that; another word is the file, or too much.
_HARMLESS = {"cat": set[str](), "flac": {"-c", "-d", "-s"}, "sox": {"-t", "wav", "-"}}


class Spoken(NamedTuple):
    """An utterance of such a corpus; the text in lower case."""

    id: str
    audio: Path
    text: str
    speaker: str


def read_kaldi(speech: Path, part: str) -> list[Spoken]:
    """The utterances of one part of a corpus with Kaldi lists."""
    texts, audio, speakers = (_kaldi_list(speech / part / name) for name in ("text", "wav.scp", "utt2spk"))
    found = []
    for name, text in texts.items():
        if name not in audio or name not in speakers:
            raise DataError(f"{speech / part}: {name} is in text but not in wav.scp and utt2spk; fetch them again.")
        path = Path(os.path.abspath(speech / audio[name]))
        if not path.is_file():
            raise DataError(f"{speech / part / 'wav.scp'}: {path} is not there; fetch the recordings as well.")
        found.append(Spoken(name, path, text.lower(), speakers[name]))
    return found


def _kaldi_list(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        raise DataError(
            f"{path}: there is no such list; name a folder with {{train,test}}/{{text,wav.scp,utt2spk}}."
        ) from None
    split = (line.split(maxsplit=1) for line in lines if line.strip())
    return {parts[0]: parts[1].strip() if len(parts) > 1 else "" for parts in split}


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> Report:
    """Write a manifest under `out` for the data folder, or for each data folder in it; segments are cut to FLAC."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "kaldi")
    folders = [source] if (source / "wav.scp").is_file() else sorted(path.parent for path in source.glob("*/wav.scp"))
    if not folders:
        raise DataError(f"{source}: no wav.scp is there, nor in a folder below; name a Kaldi data folder.")
    parts = [_part(folder) for folder in folders]
    prepared = [  # one by one, because a data folder may be a choice from another, with the same ids
        write_parts([part], out, partial(_hear, out / part.name), workers=workers, progress=progress) for part in parts
    ]
    utterances = {name: found for one in prepared for name, found in one.utterances.items()}
    problems = [problem for one in prepared for problem in one.problems]
    return finish(make_report("kaldi", source, parts, Prepared(utterances, problems)), out)


def _part(folder: Path) -> Part:
    """All that the lists of a data folder say, joined by the utterances' ids."""
    part = Part(Path(os.path.abspath(folder)).name, [])
    texts = read_transcripts(folder / "text", part.name, part.problems)
    recordings = _read(folder / "wav.scp", part)
    speakers = _read(folder / "utt2spk", part) if (folder / "utt2spk").is_file() else {}
    spans = dict(_spans(folder, part, recordings))
    for name, (recording, span) in spans.items():
        if recording not in recordings:
            told = f"{folder / 'segments'}: the recording {recording} is not in wav.scp."
            part.problems.append(Problem(part.name, MISSING, name, told))
        elif name in texts.texts:
            audio = _file(recordings[recording], folder)
            part.entries.append(Entry(name, audio, texts.texts[name], speakers.get(name, ""), span))
        elif name not in texts.named:
            part.problems.append(Problem(part.name, UNTRANSCRIBED, name, f"{folder / 'text'}: this id is not there."))
    told = f"{folder}: there is a text for this id, but no recording or segment."
    without = texts.texts.keys() - spans.keys() - {problem.name for problem in part.problems}
    part.problems.extend(Problem(part.name, MISSING, name, told) for name in without)
    return part


def _read(path: Path, part: Part) -> dict[str, str]:
    return trusted(split_lines(path, part.name, part.problems), path, part.name, part.problems).texts


def _spans(
    folder: Path, part: Part, recordings: dict[str, str]
) -> Iterator[tuple[str, tuple[str, tuple[float, float] | None]]]:
    """Utterance, recording, start and end of every line of `segments`; without it a recording is an utterance."""
    path = folder / "segments"
    if not path.is_file():
        yield from ((name, (name, None)) for name in recordings)
        return
    for name, rest in _read(path, part).items():
        try:
            recording, start, end = rest.split()[:3]
            yield name, (recording, (float(start), float(end)))
        except ValueError:
            part.problems.append(Problem(part.name, LIST, name, f"{path}: {rest!r} is not RECORDING START END."))


def _file(line: str, folder: Path) -> Path:
    """The file that a line of wav.scp means, relative to the folder, to the one above, or to where we are.

    Of a pipe it is the file that is decoded; a pipe that does anything else stays as it is and is refused later.
    """
    name = _decoded(line) if line.endswith("|") else line
    if name is None:
        return Path(line)
    places = [folder, folder.parent, Path()]
    found = (place / name for place in places if (place / name).is_file())
    return Path(os.path.abspath(next(found, folder / name)))


def _decoded(command: str) -> str | None:
    """The one file that a pipe decodes; none where it might do more than that."""
    try:
        program, *words = shlex.split(command.removesuffix("|"))
    except ValueError:
        return None
    harmless = _HARMLESS.get(Path(program).name)
    files = [word for word in words if harmless is not None and word not in harmless]
    return files[0] if len(files) == 1 and not files[0].startswith("-") else None


def _hear(out: Path, entry: Entry) -> Heard:
    if str(entry.audio).endswith("|"):
        told = f"{entry.audio}: commands are not run; write what this one gives to a file, and the file into wav.scp."
        raise UnusableError(UNREADABLE, told)
    if entry.span is None:
        return Heard(entry.audio, listen(entry.audio, None))
    return _cut(out, entry, *entry.span)


def _cut(out: Path, entry: Entry, start: float, end: float) -> Heard:
    """Write a segment as FLAC, in one move."""
    refuse_absent(entry.audio)
    try:
        with soundfile.SoundFile(entry.audio) as file:
            rate, first, last = file.samplerate, round(start * file.samplerate), round(end * file.samplerate)
            if not 0 <= first < last <= file.frames:
                told = f"{entry.audio}: {start} to {end} s is not within its {file.frames / rate:.2f} s."
                raise UnusableError(UNREADABLE, told)
            file.seek(first)
            samples = mix_down(file.read(last - first, dtype="float32", always_2d=True))
    except soundfile.LibsndfileError as error:
        raise UnusableError(UNREADABLE, f"{entry.audio}: this cannot be read ({error.error_string})") from None
    if len(samples) < last - first:
        raise UnusableError(UNREADABLE, f"{entry.audio}: this file is truncated; fetch it again.")
    path = out / f"{quote(entry.id, safe=' ')}.flac"
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(path) as unfinished:
        soundfile.write(unfinished, samples, rate, format="FLAC", subtype="PCM_16")
    return Heard(path.absolute(), len(samples) / rate)
