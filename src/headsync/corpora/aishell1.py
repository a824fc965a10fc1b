"""AIShell-1: the public tree data_aishell/wav/{train,dev,test}/SPEAKER/*.wav with one list of transcripts.

Spaces between words are removed, as in the published recipe: the tokens are characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from headsync.corpora.audio_files import check_at_rate
from headsync.corpora.manifest import Progress, write_text
from headsync.corpora.preparation import CorpusEntry, Expected, Part, Problem, ProblemKind, write_parts
from headsync.corpora.report import Classes, CorpusReport, characters, finish, refuse_other_corpus
from headsync.corpora.transcripts import read_transcripts
from headsync.errors import DataError

_RATE = 16_000
_CLASSES = 4_231
EXPECTED = {"train": Expected(120_098, 340), "dev": Expected(14_326, 40), "test": Expected(7_176, 20)}

_SPEAKER = re.compile(r"S\d{4}")


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> CorpusReport:
    """Write the manifests train, dev and test to `out`; the audio stays in place."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "aishell1")
    parts = _parts(_root(source))
    prepared = write_parts(parts, out, partial(check_at_rate, _RATE), workers=workers, progress=progress)
    for name in ("train", "dev"):
        write_text(out / f"lm_{name}.txt", prepared.utterances[name])
    found = len(characters(one.text for one in prepared.utterances["train"]))
    classes = Classes(found + 1, _CLASSES, f"{found} characters of train and <unk>")
    return finish("aishell1", source, out, parts, prepared, classes)


def _root(source: Path) -> Path:
    root = source / "data_aishell" if (source / "data_aishell").is_dir() else source
    if not (root / "wav").is_dir() or not _lists(root):
        raise DataError(
            f"{source}: wav/ or transcript/aishell_transcript_v0.8.txt is missing; "
            "unpack data_aishell.tgz from https://www.openslr.org/33 and pass the folder data_aishell."
        )
    return root


def _lists(root: Path) -> list[Path]:
    return sorted((root / "transcript").glob("aishell_transcript*.txt"))


def _parts(root: Path) -> list[Part]:
    """The three parts; transcripts without a recording name no part and are reported with train."""
    problems: list[Problem] = []
    texts, named = read_transcripts(_lists(root), "", problems, clean=lambda text: "".join(text.split()))
    parts = [_part(root / "wav" / name, texts, named) for name in EXPECTED]
    there = {entry.id for part in parts for entry in part.entries}
    parts[0].problems.extend([*problems, *_without_recording(root, texts.keys() - there)])
    return parts


def _part(folder: Path, texts: dict[str, str], named: set[str]) -> Part:
    part = Part(folder.name, [], [], EXPECTED[folder.name])
    for path in sorted(folder.glob("*/*.wav")):
        if path.stem in texts:
            part.entries.append(CorpusEntry(path.stem, path, texts[path.stem], path.parent.name))
        elif path.stem not in named:
            part.omit(ProblemKind.NO_TRANSCRIPT, path.stem, f"{path}: this recording is in no list of transcripts.")
    return part


def _without_recording(root: Path, names: set[str]) -> Iterator[Problem]:
    """A problem for each transcript without audio, but only one for a speaker without any audio."""
    present = {path.name for path in root.glob("wav/*/*") if path.is_dir()}
    for speaker, group in groupby(sorted(names, key=_speaker_and_name), lambda name: _speaker_and_name(name)[0]):
        missing = list(group)
        if speaker in present or not speaker:
            what = f"{root / 'wav'}: the recording of this transcript is missing; download it again."
            yield from (Problem("", ProblemKind.MISSING_AUDIO, name, what) for name in missing)
        else:
            packed = root / "wav" / f"{speaker}.tar.gz"
            remedy = f"unpack {packed}" if packed.exists() else "download the speaker"
            what = f"{root / 'wav'}: all {len(missing)} recordings are missing; {remedy}."
            yield Problem("", ProblemKind.MISSING_AUDIO, speaker, what)


def _speaker_and_name(name: str) -> tuple[str, str]:
    found = _SPEAKER.search(name)
    return (found[0] if found else "", name)
