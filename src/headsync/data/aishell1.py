"""AIShell-1: the public tree data_aishell/wav/{train,dev,test}/SPEAKER/*.wav with one list of transcripts.

The spaces between words are taken out, as in the published recipe, because recognition is by characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from headsync.data.corpus import MISSING, UNTRANSCRIBED, Entry, Expected, Part, Problem, Progress, write_parts
from headsync.data.corpus_report import Classes, Report, characters, finish, make_report, refuse_other_corpus
from headsync.data.listening import hear_at
from headsync.data.manifest import write_text
from headsync.data.transcripts import read_transcripts
from headsync.errors import DataError

RATE = 16_000
CLASSES = 4_231
EXPECTED = {"train": Expected(120_098, 340), "dev": Expected(14_326, 40), "test": Expected(7_176, 20)}

_SPEAKER = re.compile(r"S\d{4}")


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> Report:
    """Write the manifests train, dev and test under `out`; the audio stays where it lies."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "aishell1")
    parts = _parts(_root(source))
    prepared = write_parts(parts, out, partial(hear_at, RATE), workers=workers, progress=progress)
    for name in ("train", "dev"):
        write_text(out / f"lm_{name}.txt", prepared.utterances[name])
    found = len(characters(one.text for one in prepared.utterances["train"]))
    classes = Classes(found + 1, CLASSES, f"{found} characters of train and <unk>")
    return finish(make_report("aishell1", source, parts, prepared)._replace(classes=classes), out)


def _root(source: Path) -> Path:
    root = source / "data_aishell" if (source / "data_aishell").is_dir() else source
    if not (root / "wav").is_dir() or not _lists(root):
        raise DataError(
            f"{source}: wav/ and transcript/aishell_transcript_v0.8.txt are not both there; "
            "unpack data_aishell.tgz from https://www.openslr.org/33 and name the folder data_aishell."
        )
    return root


def _lists(root: Path) -> list[Path]:
    return sorted((root / "transcript").glob("aishell_transcript*.txt"))


def _parts(root: Path) -> list[Part]:
    """The three parts; transcripts without a recording are told beside train, since they name no part."""
    problems: list[Problem] = []
    texts: dict[str, str] = {}
    named: set[str] = set()
    for path in _lists(root):
        transcripts = read_transcripts(path, "", problems, clean=_without_spaces)
        texts |= transcripts.texts
        named |= transcripts.named
    parts = [_part(root / "wav" / name, texts, named) for name in EXPECTED]
    there = {entry.id for part in parts for entry in part.entries}
    parts[0].problems.extend([*problems, *_without_recording(root, texts.keys() - there)])
    return parts


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _part(folder: Path, texts: dict[str, str], named: set[str]) -> Part:
    part = Part(folder.name, [], [], EXPECTED[folder.name])
    for path in sorted(folder.glob("*/*.wav")):
        if path.stem in texts:
            part.entries.append(Entry(path.stem, path, texts[path.stem], path.parent.name))
        elif path.stem not in named:
            told = f"{path}: no list of transcripts has this recording."
            part.problems.append(Problem(part.name, UNTRANSCRIBED, path.stem, told))
    return part


def _without_recording(root: Path, names: set[str]) -> Iterator[Problem]:
    """A problem for each transcript without audio, but only one for a speaker who is absent altogether."""
    present = {path.name for path in root.glob("wav/*/*") if path.is_dir()}
    for speaker, group in groupby(sorted(names, key=_speaker_and_name), lambda name: _speaker_and_name(name)[0]):
        missing = list(group)
        if speaker in present or not speaker:
            told = f"{root / 'wav'}: the recording of this transcript is missing; fetch it again."
            yield from (Problem("", MISSING, name, told) for name in missing)
        else:
            packed = root / "wav" / f"{speaker}.tar.gz"
            remedy = f"unpack {packed}" if packed.exists() else "fetch the speaker"
            yield Problem("", MISSING, speaker, f"{root / 'wav'}: all {len(missing)} recordings are missing; {remedy}.")


def _speaker_and_name(name: str) -> tuple[str, str]:
    found = _SPEAKER.search(name)
    return (found[0] if found else "", name)
