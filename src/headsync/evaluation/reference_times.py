"""Reference word times: CTM, TextGrid or JSON files beside a manifest, from an aligner or from annotators.

CTM: "ID CHANNEL START DURATION WORD" per line, in seconds. JSON: {ID: [{"text", "start", "end"}, ...]}. TextGrid: a
folder of ID.TextGrid; the tier "words" is read, or the first tier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from headsync._parse import parse_json
from headsync.errors import DataError
from headsync.evaluation.latency import TimedWord

WordTimes = Mapping[str, Sequence[TimedWord]]  # reference words by utterance id

_TIER = re.compile(r'class = "IntervalTier".*?(?=class = "|\Z)', re.DOTALL)
_NAME = re.compile(r'name = "([^"]*)"')
_INTERVAL = re.compile(r'xmin = ([\d.eE+-]+)\s*xmax = ([\d.eE+-]+)\s*text = "((?:[^"]|"")*)"')


def find_word_times(manifest: Path) -> Path | None:
    """The word times beside a manifest: the same name with .ctm, .words.json or .TextGrid (a folder)."""
    names = (manifest.with_suffix(suffix) for suffix in (".ctm", ".words.json", ".TextGrid"))
    return next((path for path in names if path.exists()), None)


def read_word_times(path: Path) -> WordTimes:
    """The words of every utterance, in order."""
    try:
        if path.is_dir():
            return {file.stem: _read_textgrid(file) for file in sorted(path.glob("*.TextGrid"))}
        text = path.read_text(encoding="utf-8")
        return _read_json(text) if path.suffix == ".json" else _read_ctm(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{path}: these word times cannot be read ({error}); pass CTM, JSON or TextGrid.") from None


def _read_ctm(text: str) -> WordTimes:
    found: dict[str, list[TimedWord]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith(";;"):
            continue
        fields = line.split()
        if len(fields) < 5:
            raise ValueError(f"line {number} is not ID CHANNEL START DURATION WORD")
        start, duration = float(fields[2]), float(fields[3])
        found.setdefault(fields[0], []).append(TimedWord(fields[4], start, start + duration))
    return found


def _read_json(text: str) -> WordTimes:
    return {
        name: [TimedWord(str(word["text"]), float(word["start"]), float(word["end"])) for word in words]
        for name, words in parse_json(text).items()
    }


def _read_textgrid(path: Path) -> list[TimedWord]:
    """The labelled intervals of a tier; empty labels are pauses."""
    tiers = _TIER.findall(path.read_text(encoding="utf-8"))
    if not tiers:
        raise ValueError(f"{path.name} has no interval tier in the long text format")
    named = {match[1]: tier for tier in tiers if (match := _NAME.search(tier))}
    intervals = _INTERVAL.findall(named.get("words", tiers[0]))
    return [TimedWord(text.replace('""', '"'), float(a), float(b)) for a, b, text in intervals if text.strip()]
