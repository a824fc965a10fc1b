"""Batch transcription: one line of JSON for each recording of a manifest, in this process or on a Ray cluster.

One process writes complete lines. Every utterance therefore has one line in the output, even if workers fail, and a
stopped run continues with the missing utterances.

Each line records the model (a checksum), the settings and the audio file that its text comes from. A run with another
model or other settings does not continue an output; an audio file that has changed is transcribed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any

from headsync._atomic_write import write_atomically
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.errors import ConfigError, DataError, HeadsyncError
from headsync.events import Final
from headsync.frontend.audio import stream_audio
from headsync.model_folder import CARD, find_named, sha256
from headsync.recognizer import LoadOptions, Recognizer

PER_TASK = 8  # utterances in a task
_TASKS_PER_WORKER = 3  # submitted at a time, so that no worker waits
_LINE_START = b'{"id": "'
_COMPARED = ("checksum", "lm_checksum", "settings")  # of an identity; names and paths may change

Line = dict[str, Any]
Identity = dict[str, Any]
Run = Callable[["Job", Sequence[Utterance]], Iterator[Line]]


@dataclass(frozen=True)
class Job(LoadOptions):
    """A model and its settings; a value, so that any process can load it."""

    def identity(self) -> Identity:
        """Everything that the text of a recording depends on: model, language model and settings."""
        name, folder = find_named(self.model)
        settings = {key: value for key, value in self.settings if value is not None and (key, value) != _ANY_ENGINE}
        if self.hotwords:
            settings["hotwords"] = [list(pair) for pair in self.hotwords]
        if self.phrases:
            settings["phrases"] = list(self.phrases)
        identity: Identity = {"model": name, "checksum": checksum(folder), "settings": settings}
        return identity | ({"lm": str(self.lm), "lm_checksum": checksum(self.lm)} if self.lm else {})


_ANY_ENGINE = ("engine", "auto")


@dataclass(frozen=True)
class Summary:
    before: int  # utterances that earlier runs have transcribed
    transcribed: int
    failed: int


def transcribe(job: Job, manifest: Path, out: Path, run: Run, progress: Callable[[int, int], None]) -> Summary:
    """Transcribe the utterances that `out` does not have yet, and append them."""
    utterances, identity = read_manifest(manifest), job.identity()
    earlier = resume(out, identity, utterances)
    missing = [utterance for utterance in utterances if utterance.id not in earlier]
    before = len(utterances) - len(missing)
    transcribed = failed = 0
    with _open(out) as file:
        for line in run(job, missing):
            _append(file, {**line, "recognizer": identity} if "error" not in line else line, out)
            transcribed, failed = transcribed + ("error" not in line), failed + ("error" in line)
            progress(before + transcribed + failed, len(utterances))
    return Summary(before, transcribed, failed)


def resume(out: Path, identity: Identity, utterances: Sequence[Utterance]) -> set[str]:
    """The ids of the utterances that earlier runs have transcribed into `out`.

    Failed utterances, those whose audio file has changed its size, and an incomplete last line are removed from `out`.
    A file with other content, or written with another model or settings, raises an error and is left unchanged.
    """
    if not out.exists():
        return set()
    *lines, cut = out.read_bytes().split(b"\n")
    try:
        found = [_parse(line) for line in lines]
    except ValueError:
        found = None
    if found is None or not (cut.startswith(_LINE_START) or _LINE_START.startswith(cut)):
        raise DataError(f"{out}: the file is not an output of headsync transcribe; name another one.")
    manifest = {utterance.id: utterance for utterance in utterances}
    kept = []
    for raw, line in zip(lines, found, strict=True):
        if "error" not in line:
            _check_identity(line.get("recognizer"), identity, out)
            if _is_current(line, manifest.get(line["id"]), out):
                kept.append((raw, line["id"]))
    if cut or len(kept) < len(lines):
        write_atomically(out, b"".join(raw + b"\n" for raw, _ in kept))
    return {name for _, name in kept}


def checksum(path: Path) -> str:
    """SHA-256 of a file, or of all files in a folder except its model card, with their names."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    digest = hashlib.sha256()
    for each in files:
        if each.name != CARD:
            digest.update(f"{each.relative_to(path)}\n{sha256(each)}\n".encode())
    return digest.hexdigest()


def _parse(raw: bytes) -> Line:
    """Parse a line of an output file; raises ValueError if it is invalid."""
    line: Line = json.loads(raw)
    if not isinstance(line, dict) or "id" not in line or not line.keys() & {"error", "utterances"}:
        raise ValueError
    return line


def _check_identity(earlier: Identity | None, now: Identity, out: Path) -> None:
    other = "name another file, or remove this one"
    if earlier is None:
        raise DataError(f"{out}: the file does not record the model that it was written with; {other}.")
    if all(earlier.get(key) == now.get(key) for key in _COMPARED):
        return
    before, after = _describe(earlier), _describe(now)
    differences = [f"{key} {before.get(key, 'not set')} -> {after.get(key, 'not set')}" for key in before | after
                   if before.get(key) != after.get(key)]  # fmt: skip
    raise DataError(f"{out}: was written with another model or settings ({', '.join(differences)}); {other}.")


def _describe(identity: Identity) -> dict[str, str]:
    """An identity for display, with short checksums."""
    found = {"model": f"{identity['model']} ({identity['checksum'][:8]})"}
    if "lm" in identity:
        found["lm"] = f"{identity['lm']} ({identity['lm_checksum'][:8]})"
    return found | {key: str(value) for key, value in identity["settings"].items()}


def _is_current(line: Line, utterance: Utterance | None, out: Path) -> bool:
    """Whether the audio file of a line is unchanged."""
    if utterance is None:
        return True
    if line["audio"] != _absolute(utterance):
        raise DataError(
            f"{out}: {utterance.id} was transcribed from {line['audio']}, and the manifest names "
            f"{_absolute(utterance)}; name another file, or remove this one."
        )
    return bool(utterance.audio.is_file() and line["audio_bytes"] == utterance.audio.stat().st_size)


def _absolute(utterance: Utterance) -> str:
    return str(utterance.audio.absolute())


def _open(out: Path) -> FileIO:
    try:
        return FileIO(out, "a")  # unbuffered: closing it cannot fail
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror}); name another file.") from None


def _append(file: FileIO, line: Line, out: Path) -> None:
    rest = memoryview(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        again = "free some space and run the same command again, which continues there"
        raise DataError(f"{out}: cannot be written ({error.strerror}); {again}.") from None


def here(job: Job, utterances: Sequence[Utterance]) -> Iterator[Line]:
    """Transcribe the utterances in order, in this process."""
    if utterances:
        recognizer = job.load()
        yield from (recognise(recognizer, utterance) for utterance in utterances)


def recognise(recognizer: Recognizer, utterance: Utterance) -> Line:
    """The line of an utterance; for a recording that cannot be read it contains the error."""
    about: Line = {"id": utterance.id, "audio": _absolute(utterance)}
    session = recognizer.session()
    finals: list[Final] = []
    try:
        size = utterance.audio.stat().st_size
        for samples, rate in stream_audio(utterance.audio, piece_seconds=1.0):
            finals += [event for event in session.push(samples, rate) if isinstance(event, Final)]
        finals += [event for event in session.finish() if isinstance(event, Final)]
    except (HeadsyncError, OSError) as error:
        return {**about, "error": str(error)}
    text = " ".join(final.text for final in finals if final.text)
    result = {"seconds": round(session.audio_seconds, 3), "text": text}
    return {**about, "audio_bytes": size, **result, "utterances": [final.to_dict() for final in finals]}


def on_ray(workers: int | None = None, address: str | None = None) -> Run:
    """Transcribe on a Ray cluster: the one at `address`, or a new one on this machine; one CPU per worker."""
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError:
        raise ConfigError("Ray is not installed: pip install 'headsync[cluster]'") from None

    def run(job: Job, utterances: Sequence[Utterance]) -> Iterator[Line]:
        started = not ray.is_initialized()
        if started:
            ray.init(address, num_cpus=None if address else workers, include_dashboard=False, log_to_driver=False)
        try:
            job.load()  # an error in the model or its settings is raised here, before any worker starts
            task = ray.remote(num_cpus=1, max_retries=-1)(_task)  # retried without limit if a worker fails
            most = _TASKS_PER_WORKER * (workers or int(ray.cluster_resources().get("CPU", 1)))
            if workers and address:  # a larger cluster would run all submitted tasks at once
                most = workers
            yield from _collect(ray, task, job, utterances, most)
        finally:
            if started:
                ray.shutdown()

    return run


def _collect(ray: Any, task: Any, job: Job, utterances: Sequence[Utterance], most: int) -> Iterator[Line]:
    """Submit up to `most` tasks at a time, and yield their lines as they complete."""
    waiting: list[Any] = []
    for first in range(0, len(utterances), PER_TASK):
        waiting.append(task.remote(job, list(utterances[first : first + PER_TASK])))
        while len(waiting) >= most:
            (ready, *_), waiting = ray.wait(waiting, num_returns=1)
            yield from ray.get(ready)
    while waiting:
        (ready, *_), waiting = ray.wait(waiting, num_returns=1)
        yield from ray.get(ready)


def _task(job: Job, utterances: Sequence[Utterance]) -> list[Line]:
    """The lines of some utterances, in a worker."""
    recognizer = _load_once(job)
    return [recognise(recognizer, utterance) for utterance in utterances]


@lru_cache(maxsize=1)
def _load_once(job: Job) -> Recognizer:
    return job.load()
