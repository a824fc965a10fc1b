"""Harper Valley: simulated bank calls at 8 kHz (gridspace-stanford-harper-valley).

data/audio/{agent,caller}/CALL.wav are the two sides of a call, data/transcript/CALL.json has its segments with times
and human transcripts, and data/metadata/CALL.json has the speakers. Each segment is cut to a FLAC file in OUT. Noise
marks such as [noise] are removed; segments with unintelligible or cut-off words are excluded. Speakers of train, dev
and test are disjoint, and so are sentences of four and more words; shorter ones such as "thank you" occur everywhere.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from headsync._parse import parse_json
from headsync.corpora.audio_files import cut_segment
from headsync.corpora.manifest import Progress
from headsync.corpora.preparation import CheckedAudio, CorpusEntry, Part, ProblemKind, write_parts
from headsync.corpora.report import CorpusReport, finish, refuse_other_corpus
from headsync.corpora.splits import part_of, separate
from headsync.errors import DataError

_SHORTEST = 4  # words of a sentence that must not be in two parts
_NOISE = re.compile(r"\[(?!unintelligible\])[^\]]*\]")
_UNINTELLIGIBLE = re.compile(r"<unk>|\[unintelligible\]|~")


def prepare(source: Path, out: Path, *, workers: int = 1, progress: Progress | None = None) -> CorpusReport:
    """Cut the segments to FLAC in `out` and write the manifests train, dev and test."""
    source, out = Path(source).absolute(), Path(out)
    refuse_other_corpus(out, "harpervalley")
    root = source / "data" if (source / "data" / "transcript").is_dir() else source
    calls = sorted((root / "transcript").glob("*.json"))
    if not calls:
        raise DataError(
            f"{source}: found no data/transcript/*.json; clone "
            "https://github.com/cricketclub/gridspace-stanford-harper-valley and pass its folder."
        )
    by_name = {name: Part(name, []) for name in ("train", "dev", "test")}
    for call in calls:
        _add_call(by_name, root, call)
    parts = list(by_name.values())
    separate(parts, _SHORTEST)
    prepared = write_parts(parts, out, partial(_cut, out), workers=workers, progress=progress)
    return finish("harpervalley", source, out, parts, prepared)


def _add_call(parts: dict[str, Part], root: Path, path: Path) -> None:
    try:
        segments = parse_json(path.read_text(encoding="utf-8"))
        metadata = parse_json((root / "metadata" / path.name).read_text(encoding="utf-8"))
        speakers = {role: f"hv{metadata[role]['speaker_id']:02d}" for role in ("agent", "caller")}
        entries = [_entry(root, path.stem, segment, speakers) for segment in segments]
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        what = f"{path}: transcript or metadata cannot be read ({error!r}); download them again."
        parts["train"].omit(ProblemKind.UNREADABLE_LIST, path.stem, what)
        return
    for entry in entries:
        part = parts[part_of(entry.speaker)]
        if _UNINTELLIGIBLE.search(entry.text):
            part.omit(ProblemKind.EXCLUDED, entry.id, f"{path}: unintelligible or cut-off word in {entry.text!r}.")
        elif not entry.text:
            part.omit(ProblemKind.EMPTY_TRANSCRIPT, entry.id, f"{path}: this segment has no words.")
        else:
            part.entries.append(entry)


def _entry(root: Path, call: str, segment: dict[str, Any], speakers: dict[str, str]) -> CorpusEntry:
    role, start = segment["speaker_role"], segment["offset_ms"] / 1000
    text = " ".join(_NOISE.sub(" ", segment["human_transcript"]).split())
    audio = root / "audio" / role / f"{call}.wav"
    span = (start, (segment["offset_ms"] + segment["duration_ms"]) / 1000)
    return CorpusEntry(f"{call}-{segment['index']:04d}", audio, text, speakers[role], span)


def _cut(out: Path, entry: CorpusEntry) -> CheckedAudio:
    return cut_segment(out / "audio" / entry.id[:2] / f"{entry.id}.flac", entry)
