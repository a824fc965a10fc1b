"""Manifests: the list of utterances that training and evaluation read, one JSON object per line.

A line has the keys id, audio, text, seconds and speaker. Audio paths inside the manifest's folder are relative, so that
a prepared corpus can be moved.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headsync._atomic_write import in_one_move
from headsync._parse import parse_json
from headsync.errors import DataError

Progress = Callable[[int, int], None]  # utterances done, all utterances


@dataclass(frozen=True)
class Utterance:
    """One recording and its text; an empty text means that no word of the vocabulary is spoken."""

    id: str
    audio: Path
    text: str
    seconds: float
    speaker: str = ""
    speed: float = 1.0  # set by training (speed perturbation); not part of a manifest


@dataclass(frozen=True)
class Counts:
    """The number of recordings in each part of a generated corpus."""

    train: int
    dev: int
    test: int


def read_manifest(path: Path) -> list[Utterance]:
    """Every utterance of a manifest, in order, with resolved audio paths."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a text may hold other line ends
    except FileNotFoundError:
        raise DataError(f"{path}: no such manifest; prepare the corpus first.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: this manifest cannot be read ({error}); prepare the corpus again.") from error
    utterances = [_parse(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    counts = Counter(utterance.id for utterance in utterances)
    if repeated := next((name for name, count in counts.items() if count > 1), None):
        raise DataError(f"{path}: the id {repeated!r} is listed twice; ids must be unique.")
    return utterances


def write_manifest(path: Path, utterances: Iterable[Utterance]) -> None:
    """Write the manifest atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        file.writelines(_line(utterance, path.parent) + "\n" for utterance in utterances)


def write_text(path: Path, utterances: Iterable[Utterance], sentences: Iterable[str] = ()) -> None:
    """Write the texts alone, and further sentences, one per line, for a language model."""
    with in_one_move(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        file.writelines(f"{u.text}\n" for u in utterances if u.text)
        file.writelines(f"{sentence}\n" for sentence in sentences)


def _line(utterance: Utterance, folder: Path) -> str:
    audio = Path(os.path.abspath(utterance.audio))
    if audio.is_relative_to(os.path.abspath(folder)):
        audio = audio.relative_to(os.path.abspath(folder))
    entry = {
        "id": utterance.id,
        "audio": audio.as_posix(),
        "text": utterance.text,
        "seconds": round(utterance.seconds, 4),
        "speaker": utterance.speaker,
    }
    return json.dumps(entry, ensure_ascii=False)


def _parse(line: str, path: Path, number: int) -> Utterance:
    where = f"{path}:{number}"
    try:
        entry = parse_json(line)
    except ValueError as error:
        reason = getattr(error, "msg", error)
        raise DataError(f"{where}: this is not a JSON object ({reason}); prepare the corpus again.") from None
    if not isinstance(entry, dict):
        raise DataError(f"{where}: expected a JSON object with id, audio, text and seconds, found {line[:40]!r}.")
    seconds = _field(entry, "seconds", (int, float), where)
    if isinstance(seconds, bool) or not 0 < seconds < sys.float_info.max:
        raise DataError(f"{where}: seconds = {seconds} must be above zero and finite; prepare the corpus again.")
    return Utterance(
        id=_field(entry, "id", str, where),
        audio=path.parent / _field(entry, "audio", str, where),  # an absolute path is kept
        text=_field(entry, "text", str, where),
        seconds=float(seconds),
        speaker=_field({"speaker": "", **entry}, "speaker", str, where),
    )


def _field(entry: dict[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    if name not in entry:
        raise DataError(f'{where}: "{name}" is missing; every line requires id, audio, text and seconds.')
    if not isinstance(entry[name], kind):
        wanted = "a string" if kind is str else "a number"
        raise DataError(f'{where}: "{name}" must be {wanted}, found {entry[name]!r}.')
    return entry[name]
