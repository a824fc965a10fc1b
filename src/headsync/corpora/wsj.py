"""WSJ: the discs of LDC93S6B (WSJ0) and LDC94S13B (WSJ1), by their own index files.

SOURCE contains the discs 11-1.1 to 13-34.1, at any depth, with names in upper or lower case. The parts are those of the
published recipes: the training set of 284 speakers (si284), the development test of November 1993 (dev93) and the
evaluation test of November 1992 (eval92), first microphone. Recordings are decoded to FLAC in OUT. The text for the
language model is that of the training set and the newspaper texts of 1987 to 1989 on disc 13-32.1.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headsync.corpora.audio_files import refuse_absent, refuse_rate, write_flac
from headsync.corpora.manifest import Progress, write_text
from headsync.corpora.preparation import (
    CheckedAudio,
    CorpusEntry,
    Expected,
    Part,
    Problem,
    ProblemKind,
    UnusableError,
    write_parts,
)
from headsync.corpora.report import Classes, CorpusReport, characters, finish, refuse_other_corpus
from headsync.corpora.transcripts import Transcripts
from headsync.errors import DataError

_RATE = 16_000
CLASSES = 52
NOISE = "<NOISE>"
SYMBOLS = (NOISE, "<*IN*>", "<*MR.*>")  # each is one class

INDICES = {
    "train_si284": ("wsj1/doc/indices/si_tr_s.ndx", "wsj0/doc/indices/train/tr_s_wv1.ndx"),
    "test_dev93": ("wsj1/doc/indices/h1_p0.ndx",),
    "test_eval92": ("wsj0/doc/indices/test/nvp/si_et_20.ndx",),
}
EXPECTED = {"train_si284": Expected(37_416), "test_dev93": Expected(503), "test_eval92": Expected(333)}
NEWSPAPER = tuple(f"wsj1/doc/lng_modl/lm_train/np_data/{year}/" for year in (87, 88, 89))

_NOT_RELEASED = "wsj0/si_tr_s/401/"  # listed in the index, but on no disc
_LISTED = re.compile(r"\s*[0-9_]+:\s*/*(\S+)\s*")
_SPOKEN = re.compile(r"(.*)\((\w{8})\)\s*")
_VERBAL = {"%PERCENT": "PERCENT", ".POINT": "POINT", "--DASH": "-DASH"}
_MARK = re.compile(r"\[<\w+\]|\[\w+>\]|.*\[\w+/\]|.*\[/\w+\]|~|\.")  # a noise beside a word, a cut, a pause
_NOISE = re.compile(r".*\[\w+\].*")
_DELETED = re.compile(r"<([\w']+)>")  # a word not in the prompt, but spoken
_HEADER_FIELD = re.compile(r"^(\w+) -(?:i|r|s\d+) (.*)$", re.MULTILINE)  # of a SPHERE file

_Samples = npt.NDArray[np.int16]
_Discs = dict[str, Path]  # files by lower-case path, starting with wsj0 or wsj1


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> CorpusReport:
    """Decode the three parts to FLAC in `out` and write their manifests."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "wsj")
    discs = _files(source)
    if not any(index in discs for indices in INDICES.values() for index in indices):
        raise DataError(
            f"{source}: found no index such as 11-13.1/{INDICES['test_eval92'][0]}; "
            "pass the folder that contains the discs of LDC93S6B and LDC94S13B."
        )
    spoken, problems = _transcripts(discs)
    parts = [_part(name, discs, spoken) for name in INDICES]
    parts[0].problems.extend(problems)
    newspaper = [path for key, path in sorted(discs.items()) if key.startswith(NEWSPAPER)]
    if not newspaper:
        what = "no newspaper text, so lm_train.txt is not written; add disc 13-32.1 to train the language model."
        parts[0].omit(ProblemKind.UNREADABLE_LIST, NEWSPAPER[0], f"{NEWSPAPER[0]}: {what}")
    prepared = write_parts(parts, out, partial(_decode, out), workers=workers, progress=progress)
    if newspaper:
        write_text(out / "lm_train.txt", prepared.utterances["train_si284"], _sentences(newspaper))
    write_text(out / "lm_dev.txt", prepared.utterances["test_dev93"])
    found = len(characters((one.text for one in prepared.utterances["train_si284"]), SYMBOLS))
    classes = Classes(found + 3, CLASSES, f"{found} characters and symbols of train_si284, <unk>, blank and <eos>")
    return finish("wsj", source, out, parts, prepared, classes)


def normalise(text: str) -> str:
    """The normalisation of the published recipes: upper case, and no marks except that of a noise."""
    words = (word.upper().replace("\\", "") for word in text.split())
    return " ".join(_spoken(_VERBAL.get(word, word)) for word in words if not _MARK.fullmatch(word))


def _spoken(word: str) -> str:
    if _NOISE.fullmatch(word):
        return NOISE
    deleted = _DELETED.fullmatch(word)
    return deleted[1] if deleted else word


def _sentences(newspaper: Iterable[Path]) -> Iterator[str]:
    """The newspaper texts as in the published recipes: upper case, without lines of markup."""
    for path in newspaper:
        for line in _decompressed(path).splitlines():
            if line.strip() and "<" not in line:
                yield " ".join(line.upper().split())


def _decompressed(path: Path) -> str:
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if content.startswith(b"\x1f") else content
    except (OSError, EOFError, zlib.error):
        raise DataError(f"{path}: cannot be decompressed; run gunzip on a copy of this folder.") from None
    return content.decode("latin-1")


def _files(source: Path) -> _Discs:
    """Every file of the discs; the first of two copies is used."""
    found: _Discs = {}
    seen = set()
    for folder, below, files in os.walk(source, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            below.clear()  # a cyclic link
            continue
        seen.add(real)
        below.sort()
        parts = [part.lower() for part in Path(folder).parts]
        root = next((n for n in range(len(parts) - 1, -1, -1) if parts[n] in ("wsj0", "wsj1")), None)
        if root is not None:
            for name in sorted(files):
                found.setdefault("/".join([*parts[root:], name.lower()]), Path(folder) / name)
    return found


def _transcripts(discs: _Discs) -> tuple[Transcripts, list[Problem]]:
    """The normalised texts of all .dot files; an id with different texts on several discs is not used."""
    found: dict[str, str] = {}
    problems = []
    differing = set()
    for path in (path for key, path in sorted(discs.items()) if key.endswith(".dot")):
        for name, text in _dot_lines(path):
            if found.setdefault(name, text) != text:
                differing.add(name)
                what = f"{path}: another .dot file has a different text."
                problems.append(Problem("", ProblemKind.DUPLICATE, name, what))
    what = "the .dot file has no words for this id."
    problems += [Problem("", ProblemKind.EMPTY_TRANSCRIPT, name, what) for name, text in found.items() if not text]
    texts = {name: text for name, text in found.items() if text and name not in differing}
    return Transcripts(texts, set(found)), problems


def _dot_lines(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="latin-1").splitlines():
        if match := _SPOKEN.fullmatch(line):
            yield match[2].lower(), normalise(match[1])


def _part(name: str, discs: _Discs, spoken: Transcripts) -> Part:
    part = Part(name, [], [], EXPECTED[name])
    for index in INDICES[name]:
        if index not in discs:
            part.omit(ProblemKind.UNREADABLE_LIST, index, f"{index}: this index is on none of the discs; add its disc.")
            continue
        for listed in _index_lines(discs[index]):
            _add(part, listed, discs.get(listed), spoken)
    return part


def _index_lines(path: Path) -> Iterator[str]:
    """The files in an index; some indices omit the suffix."""
    for line in path.read_text(encoding="latin-1").splitlines():
        if (match := _LISTED.fullmatch(line)) and not line.startswith(";"):
            listed = match[1].lower()
            if not listed.startswith(_NOT_RELEASED):
                yield listed if listed.endswith(".wv1") else f"{listed}.wv1"


def _add(part: Part, listed: str, path: Path | None, spoken: Transcripts) -> None:
    name = listed.rpartition("/")[2].removesuffix(".wv1")
    if path is None:
        part.omit(ProblemKind.MISSING_AUDIO, name, f"{listed}: no disc has this file; add the disc.")
    elif name in spoken.texts:
        part.entries.append(CorpusEntry(name, path, spoken.texts[name], name[:3]))
    elif name not in spoken.named:
        part.omit(ProblemKind.NO_TRANSCRIPT, name, f"{path}: this utterance is in no .dot file.")


def _decode(out: Path, entry: CorpusEntry) -> CheckedAudio:
    path = out / "audio" / entry.speaker / f"{entry.id}.flac"
    return write_flac(path, read_sphere(entry.audio, _RATE), _RATE)


def read_sphere(path: Path, rate: int) -> _Samples:
    """All samples of a file with one channel; their number and checksum must match the header."""
    refuse_absent(path)
    header = _header(path)
    refuse_rate(path, header.get("sample_rate", 0), rate)
    samples = _decode_sphere(path)
    count = header.get("sample_count", len(samples))
    if len(samples) != count:
        what = f"{path}: found {len(samples)} of {count} samples; download it again."
        raise UnusableError(ProblemKind.UNREADABLE, what)
    checksum = header.get("sample_checksum")
    if checksum is not None and checksum % 65_536 != int(samples.astype(np.int64).sum()) % 65_536:
        what = f"{path}: the samples do not match the checksum in the header; download it again."
        raise UnusableError(ProblemKind.WRONG_CHECKSUM, what)
    return samples


def _header(path: Path) -> dict[str, int]:
    """The integer fields of the header."""
    with path.open("rb") as file:
        text = file.read(1_024).decode("latin-1")
    if not text.startswith("NIST_1A"):
        raise UnusableError(ProblemKind.UNREADABLE, f"{path}: not a SPHERE file; download it again.")
    fields = _HEADER_FIELD.findall(text.partition("end_head")[0])
    return {name: int(value) for name, value in fields if re.fullmatch(r"-?\d+", value.strip())}


def _decode_sphere(path: Path) -> _Samples:
    import av

    pieces = [np.zeros(0, np.int16)]
    try:
        with av.open(str(path), format="nistsphere", metadata_errors="ignore") as file:
            for frame in file.decode(audio=0):
                pieces.append(frame.to_ndarray().reshape(-1).astype(np.int16))
    except av.FFmpegError as error:
        what = f"{path}: cannot be decoded ({error.strerror or type(error).__name__}); download it again."
        raise UnusableError(ProblemKind.UNREADABLE, what) from None
    return np.concatenate(pieces)
