"""Output formats: plain text, JSON, SubRip and WebVTT.

Pure functions from the finals of a stream to the content of a file, listed in `FORMATS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from headsync.events import Final, Word

LINE_CHARACTERS = 42  # the usual limit of subtitle guidelines
CUE_SECONDS = 6.0  # longest time on screen
PAUSE_SECONDS = 1.0  # a pause of this length ends a cue


class Cue(NamedTuple):
    text: str
    start_seconds: float
    end_seconds: float


def to_text(finals: Sequence[Final]) -> str:
    """One line for each utterance."""
    return "".join(f"{final.text}\n" for final in finals)


def to_json(finals: Sequence[Final], **about: Any) -> str:
    """One line: metadata of the recording, the transcript, and the utterances with their words and times."""
    transcript = " ".join(final.text for final in finals if final.text)
    utterances = [final.to_dict() for final in finals]
    return json.dumps({**about, "text": transcript, "utterances": utterances}, ensure_ascii=False) + "\n"


def to_srt(finals: Sequence[Final]) -> str:
    """SubRip: numbered cues, a comma before the milliseconds."""
    return "\n".join(
        f"{number}\n{_clock(cue.start_seconds, ',')} --> {_clock(cue.end_seconds, ',')}\n{cue.text}\n"
        for number, cue in enumerate(cut_cues(finals), start=1)
    )


def to_vtt(finals: Sequence[Final]) -> str:
    """WebVTT: a header, a point before the milliseconds, and text that escapes &, < and >."""
    cues = (
        f"\n{_clock(cue.start_seconds, '.')} --> {_clock(cue.end_seconds, '.')}\n{escape(cue.text, quote=False)}\n"
        for cue in cut_cues(finals)
    )
    return "WEBVTT\n" + "".join(cues)


FORMATS: dict[str, Callable[[Sequence[Final]], str]] = {"text": to_text, "json": to_json, "srt": to_srt, "vtt": to_vtt}


def cut_cues(finals: Sequence[Final]) -> list[Cue]:
    """Cut the words into readable lines, at pauses where possible."""
    groups = [group for final in finals for group in _group(final.words)]
    texts = (" ".join(word.text for word in group if word.text) for group in groups)
    return [Cue(text, group[0].start_seconds, group[-1].end_seconds) for text, group in zip(texts, groups, strict=True)]


def _group(words: Sequence[Word]) -> Iterator[list[Word]]:
    group: list[Word] = []
    for word in words:
        if group and not _fits(group, word):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _fits(group: Sequence[Word], word: Word) -> bool:
    characters = sum(len(earlier.text) + 1 for earlier in group) + len(word.text)
    pause_seconds = word.start_seconds - group[-1].end_seconds
    cue_seconds = word.end_seconds - group[0].start_seconds
    return characters <= LINE_CHARACTERS and pause_seconds < PAUSE_SECONDS and cue_seconds <= CUE_SECONDS


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds, rounded once so that 59.9996 s is a full minute."""
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds // 1000:02d}{point}{milliseconds % 1000:03d}"
