"""Shards: a corpus in a few large files for sequential reading, in lhotse's tar format ("shar").

A shard is a pair of files: cuts.000000.jsonl.gz lists its utterances; recording.000000.tar contains ID.flac and its
description ID.json for each. Lhotse reads these shards. Shards written by lhotse are accepted if each cut is one whole
recording with one text.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import soundfile

from headsync._atomic_write import in_one_move
from headsync._parse import parse_json
from headsync.corpora.manifest import Progress, Utterance, read_manifest
from headsync.errors import DataError
from headsync.frontend.audio import read_audio

_CUTS, _SOUNDS = "cuts.{:06d}.jsonl.gz", "recording.{:06d}.tar"


def prepare(manifest: Path, out: Path, *, size: int = 1000, progress: Progress | None = None) -> int:
    """Write the utterances of a manifest as shards of `size` and return their number; complete shards are kept."""
    utterances = read_manifest(manifest)
    if not utterances:
        raise DataError(f"{manifest}: contains no utterance; prepare the corpus first.")
    out.mkdir(parents=True, exist_ok=True)
    shards = [utterances[first : first + size] for first in range(0, len(utterances), size)]
    _refuse_others(out, len(shards))
    for number, shard in enumerate(shards):
        if not _is_written(out, number, shard):
            _write(out, number, shard)
        if progress:
            progress(min((number + 1) * size, len(utterances)), len(utterances))
    return len(shards)


def is_sharded(path: Path) -> bool:
    """Whether this is a folder of shards and not a manifest."""
    return path.is_dir()


def in_shard(utterance: Utterance) -> bool:
    return utterance.audio.suffix == ".tar"


def read_shards(folder: Path) -> list[Utterance]:
    """Every utterance of the shards in a folder; its audio is the path of its shard."""
    lists = sorted(folder.glob("cuts.*.jsonl.gz"))
    if not lists:
        raise DataError(f"{folder}: found no cuts.000000.jsonl.gz; write shards with headsync prepare shards.")
    utterances = [u for path in lists for u in _read_cuts(path)]
    if len({u.id for u in utterances}) < len(utterances):
        raise DataError(f"{folder}: an id is in two shards; the shards belong to different corpora; write them again.")
    return utterances


def read_members(utterances: Sequence[Utterance]) -> dict[str, bytes]:
    """The audio files of utterances in shards, by id; each shard is read once, in order."""
    wanted: dict[Path, set[str]] = {}
    for utterance in utterances:
        if in_shard(utterance):
            wanted.setdefault(utterance.audio, set()).add(utterance.id)
    found: dict[str, bytes] = {}
    for path, names in wanted.items():
        found |= dict(_members(path, names))
        if missing := names - found.keys():
            raise DataError(f"{path}: the audio of {min(missing)!r} is not in this shard; write the shards again.")
    return found


def _members(path: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                name, _, kind = member.name.rpartition(".")
                if name in names and kind != "json":
                    file = shard.extractfile(member)
                    assert file is not None, "members are files"
                    yield name, file.read()
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{path}: this shard cannot be read ({error}); write the shards again.") from None


def _read_cuts(path: Path) -> list[Utterance]:
    sounds = path.with_name(path.name.replace("cuts.", "recording.").removesuffix(".jsonl.gz") + ".tar")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [_utterance(parse_json(line), sounds) for line in lines if line.strip()]
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise DataError(f"{path}: this list of cuts cannot be read ({error!r}); write the shards again.") from None


def _utterance(cut: dict[str, Any], sounds: Path) -> Utterance:
    (said,) = cut["supervisions"]
    return Utterance(cut["id"], sounds, said["text"], float(cut["duration"]), said.get("speaker") or "")


def _write(out: Path, number: int, utterances: Sequence[Utterance]) -> None:
    """Write the audio first: a shard with a list of cuts is complete."""
    sounds, cuts = out / _SOUNDS.format(number), out / _CUTS.format(number)
    lines = []
    with in_one_move(sounds) as unfinished, tarfile.open(unfinished, "w") as shard:
        for utterance in utterances:
            sound, recording = _encoded(utterance)
            _add(shard, f"{utterance.id}.flac", sound)
            _add(shard, f"{utterance.id}.json", json.dumps(recording).encode())
            lines.append(json.dumps(_cut(utterance, recording), ensure_ascii=False) + "\n")
    with in_one_move(cuts) as unfinished:
        unfinished.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def _encoded(utterance: Utterance) -> tuple[bytes, dict[str, Any]]:
    """The audio as FLAC, and lhotse's description of it."""
    samples, rate = read_audio(utterance.audio)
    encoded = io.BytesIO()
    soundfile.write(encoded, samples, rate, format="FLAC", subtype="PCM_16")
    channels = list(range(samples.shape[1]))
    source = {"type": "shar", "channels": channels, "source": ""}
    recording = {"id": utterance.id, "sources": [source], "sampling_rate": rate, "num_samples": len(samples)}
    return encoded.getvalue(), {**recording, "duration": len(samples) / rate, "channel_ids": channels}


def _cut(utterance: Utterance, recording: dict[str, Any]) -> dict[str, Any]:
    channel = {"channel": 0} if len(recording["channel_ids"]) == 1 else {"channel": recording["channel_ids"]}
    span = {"start": 0, "duration": recording["duration"], **channel}
    said = {"id": utterance.id, "recording_id": utterance.id, **span, "text": utterance.text}
    kind = "MonoCut" if len(recording["channel_ids"]) == 1 else "MultiCut"
    spoken = [{**said, "speaker": utterance.speaker}]
    return {"id": utterance.id, **span, "supervisions": spoken, "recording": recording, "type": kind}


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def _is_written(out: Path, number: int, utterances: Sequence[Utterance]) -> bool:
    path = out / _CUTS.format(number)
    return path.exists() and [(u.id, u.text) for u in _read_cuts(path)] == [(u.id, u.text) for u in utterances]


def _refuse_others(out: Path, count: int) -> None:
    """Shards beyond the last one would be read as part of this corpus."""
    for path in out.glob("cuts.*.jsonl.gz"):
        if int(path.name.split(".")[1]) >= count:
            raise DataError(f"{out}: {path.name} exists and is not part of this manifest; choose an empty folder.")
