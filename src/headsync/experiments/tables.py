"""Tables of a comparison, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headsync._atomic_write import write_atomically


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns, with notes below."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        notes = "".join(f"\n- {note}" for note in self.notes)
        return (
            f"### {self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + (notes and notes + "\n")
        )

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


def write_tables(tables: Sequence[Table], folder: Path) -> Path:
    """Write all tables to `tables.md`, and each to a CSV file."""
    for table in tables:
        write_atomically(folder / f"{table.name}.csv", table.csv().encode())
    path = folder / "tables.md"
    write_atomically(path, "\n".join(table.markdown() for table in tables).encode())
    return path
