"""Train, dev and test parts with disjoint speakers and disjoint sentences."""

from __future__ import annotations

import hashlib
import re

from headsync.corpora.preparation import CorpusEntry, Part, ProblemKind

_HELD_OUT = ("test", "dev")  # parts that keep their speakers and sentences, in this order
_SHARE = 0.1  # of the speakers, for each of dev and test

_PUNCTUATION = re.compile(r"[^\w' ]+")


def part_of(speaker: str) -> str:
    """The part of a speaker; it depends on the name alone, so that subsets of a corpus are split alike."""
    place = int(hashlib.sha256(speaker.encode()).hexdigest()[:8], 16) / 2**32
    return "test" if place < _SHARE else "dev" if place < 2 * _SHARE else "train"


def separate(parts: list[Part], shortest: int = 1) -> None:
    """Remove entries whose speaker or sentence is in a held-out part; each becomes a problem.

    Sentences with fewer than `shortest` words may be in several parts. Entries without a speaker share no speaker.
    """
    speakers: set[str] = set()
    sentences: set[str] = set()
    for part in sorted(parts, key=_precedence):
        kept = []
        for entry in part.entries:
            reason = _reason(entry, speakers, sentences)
            if reason:
                what = f"{entry.audio}: this {reason} is in a held-out part."
                part.omit(ProblemKind.EXCLUDED, entry.id, what)
            else:
                kept.append(entry)
        part.entries[:] = kept
        if part.name in _HELD_OUT:
            speakers |= {entry.speaker for entry in kept if entry.speaker}
            sentences |= {text for entry in kept if len((text := plain(entry.text)).split()) >= shortest}


def plain(text: str) -> str:
    """The words of a text without case and punctuation."""
    return " ".join(_PUNCTUATION.sub(" ", text.lower()).split())


def _precedence(part: Part) -> int:
    return _HELD_OUT.index(part.name) if part.name in _HELD_OUT else len(_HELD_OUT)


def _reason(entry: CorpusEntry, speakers: set[str], sentences: set[str]) -> str:
    if entry.speaker in speakers:
        return "speaker"
    return "sentence" if plain(entry.text) in sentences else ""
