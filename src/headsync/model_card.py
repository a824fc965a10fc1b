"""Reading of model cards, the README.md of a model folder."""

from __future__ import annotations

import re
from pathlib import Path

from headsync.model_folder import CARD


def summary(folder: Path) -> str | None:
    """The first paragraph: what the model recognises."""
    _, text = _read(folder)
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith(("#", "|", "<!--"))), None)


def languages(folder: Path) -> list[str]:
    """The language codes in the front matter, written as on Hugging Face: `language: en`, `language: [en, de]` or a
    list.
    """
    front_matter, _ = _read(folder)
    found = re.search(r"^language:((?:[^\n]*)(?:\n *- .*)*)", front_matter, re.MULTILINE)
    return re.findall(r"[A-Za-z][\w-]*", found[1]) if found else []


def _read(folder: Path) -> tuple[str, str]:
    """Front matter and text; both empty without a readable card."""
    try:
        card = (folder / CARD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "", ""
    if found := re.match(r"---\n(.*?\n)---\n", card, re.DOTALL):
        return found[1], card[found.end() :]
    return "", card
