"""Tables: a CSV or TSV file with a path and a text in each row.

Relative paths are relative to the folder of the table. The first row may name the columns (path, text, speaker);
otherwise the columns are path, text and an optional speaker. A row with an empty text means that nothing is spoken.
"""

from __future__ import annotations

import csv
import io
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headsync.corpora.audio_files import check_at_rate
from headsync.corpora.manifest import Progress
from headsync.corpora.preparation import CorpusEntry, Part, ProblemKind, write_parts
from headsync.corpora.report import CorpusReport, finish, refuse_other_corpus
from headsync.errors import DataError

_NAMES = {
    "path": ("path", "audio", "audio_path", "audio_filepath", "file", "filename", "wav"),
    "text": ("text", "transcript", "transcription", "sentence"),
    "speaker": ("speaker", "speaker_id", "client_id"),
}
_HEAD = 65_536  # characters used to detect the separator


class _Columns(NamedTuple):
    path: int
    text: int
    speaker: int | None


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> CorpusReport:
    """Write one manifest to `out`, named after the table; the audio stays in place."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "table")
    parts = [_part(source)]
    prepared = write_parts(parts, out, partial(check_at_rate, None), workers=workers, progress=progress)
    return finish("table", source, out, parts, prepared)


def _part(source: Path) -> Part:
    rows = _rows(source)
    part = Part(source.stem, [])
    named = _columns(rows[0])
    columns = named or _Columns(0, 1, 2 if len(rows[0]) > 2 else None)
    for number, row in enumerate(rows[1:] if named else rows, 2 if named else 1):
        if len(row) <= max(columns.path, columns.text) or not row[columns.path]:
            what = f"{source}: row {number} must have a path and a text, found {row!r}."
            part.omit(ProblemKind.UNREADABLE_LIST, f"row {number}", what)
        else:
            part.entries.append(_entry(source.parent, row, columns))
    return part


def _rows(source: Path) -> list[list[str]]:
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: this table cannot be read ({error}); pass a CSV or TSV file in UTF-8.") from None
    read = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(source, text))
    try:
        rows = [[cell.strip() for cell in row] for row in read if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise DataError(f"{source}: line {read.line_num} cannot be read ({error}); correct the table.") from None
    if not rows:
        raise DataError(f"{source}: this table has no rows; each row requires a path and a text.")
    return rows


def _separator(source: Path, text: str) -> str:
    """A tab for .tsv; otherwise the most frequent of tab, semicolon and comma in the first row."""
    first = text[:_HEAD].lstrip().split("\n")[0]
    return "\t" if source.suffix.lower() == ".tsv" else max("\t;,", key=first.count)


def _columns(row: list[str]) -> _Columns | None:
    """The columns named by a header row; None if the row is not a header."""
    found = {
        column: next((n for n, cell in enumerate(row) if cell.lower() in names), None)
        for column, names in _NAMES.items()
    }
    if found["path"] is None or found["text"] is None:
        return None
    return _Columns(found["path"], found["text"], found["speaker"])


def _entry(folder: Path, row: list[str], columns: _Columns) -> CorpusEntry:
    speaker = row[columns.speaker] if columns.speaker is not None and columns.speaker < len(row) else ""
    audio = Path(os.path.abspath(folder / row[columns.path]))
    name, _ = os.path.splitext(Path(row[columns.path]))
    return CorpusEntry(name, audio, " ".join(row[columns.text].split()), speaker)
