"""Results in the formats of NIST's scoring toolkit (sclite): CTM and trn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headsync._atomic_write import in_one_move
from headsync.events import Word


class Transcript(Protocol):
    """One evaluated recording."""

    @property
    def id(self) -> str: ...
    @property
    def speaker(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def hypothesis(self) -> str: ...
    @property
    def final_words(self) -> tuple[Word, ...]: ...


def write_ctm(path: Path, transcripts: Sequence[Transcript]) -> None:
    """Write the recognised words with times and confidences: ID CHANNEL START DURATION WORD CONFIDENCE."""
    lines = [
        f"{_name(one.id)} 1 {word.start_seconds:.3f} {max(0.0, word.end_seconds - word.start_seconds):.3f} "
        f"{word.text} {word.confidence:.3f}\n"
        for one in transcripts
        for word in one.final_words
    ]
    _write(path, lines)


def write_trn(folder: Path, transcripts: Sequence[Transcript]) -> None:
    """Write ref.trn and hyp.trn to a folder, for `sclite -r ref.trn -h hyp.trn -i rm`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("reference", "hypothesis"):
        lines = [f"{getattr(one, name)} ({_speaker(one)}-{_name(one.id)})\n".lstrip() for one in transcripts]
        _write(folder / f"{name[:3]}.trn", lines)


def _speaker(one: Transcript) -> str:
    return _name(one.speaker).replace("-", "_") or "unknown"


def _name(text: str) -> str:
    """An id without spaces and parentheses, which separate fields."""
    return "".join("_" if sign.isspace() or sign in "()" else sign for sign in text)


def _write(path: Path, lines: Sequence[str]) -> None:
    with in_one_move(path) as unfinished:
        unfinished.write_text("".join(lines), encoding="utf-8")
