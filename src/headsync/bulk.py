"""Bulk transcription: the recordings of a manifest in, one line of JSON for each out, here or on a Ray cluster.

Only one process writes, and it writes a line when the whole of it is known. So an utterance stands in the output once,
whatever happened to the workers on the way, and a run that was stopped does what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from headsync.audio import stream_audio
from headsync.data.manifest import Utterance, read_manifest
from headsync.errors import ConfigError, DataError, HeadsyncError
from headsync.events import Final
from headsync.recognizer import Recognizer
from headsync.writing import write_atomically

PER_TASK = 8  # utterances that a worker gets at a time
BEGINNING = b'{"id": "'  # of every line
TASKS_PER_WORKER = 3  # that wait for it, so that it never waits itself

Line = dict[str, Any]
Run = Callable[["Job", Sequence[Utterance]], Iterator[Line]]


@dataclass(frozen=True)
class Job:
    """How recordings are recognised; a value, so that any process can load it."""

    model: str | None = None
    lm: Path | None = None
    hotwords: tuple[tuple[str, float], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def load(self) -> Recognizer:
        return Recognizer.load(self.model, lm=self.lm, hotwords=self.hotwords, **dict(self.settings))


@dataclass(frozen=True)
class Done:
    """What a run has done."""

    before: int  # utterances that were there already
    recognised: int
    failed: int


def transcribe(job: Job, manifest: Path, out: Path, run: Run, progress: Callable[[int, int], None]) -> Done:
    """Recognise what is not in `out` yet and add it, line by line."""
    utterances = read_manifest(manifest)
    there = take_up(out)
    missing = [u for u in utterances if u.id not in there]
    recognised = failed = 0
    with out.open("a", encoding="utf-8") as file:
        for line in run(job, missing):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            recognised, failed = recognised + ("error" not in line), failed + ("error" in line)
            progress(len(utterances) - len(missing) + recognised + failed, len(utterances))
    return Done(len(utterances) - len(missing), recognised, failed)


def take_up(out: Path) -> set[str]:
    """The ids of what an earlier run has transcribed.

    What failed then is tried again, and its lines are taken away; so is the line that a kill cut in two. A file that is
    not the output of an earlier run is left as it is.
    """
    if not out.exists():
        return set()
    *lines, cut = out.read_bytes().split(b"\n")
    try:
        told = [_told(line) for line in lines]
    except ValueError:
        told = None
    if told is None or not (cut.startswith(BEGINNING) or BEGINNING.startswith(cut)):
        raise DataError(f"{out}: this is not the output of an earlier run; name another file.")
    done = [line for line, one in zip(lines, told, strict=True) if "error" not in one]
    if cut or len(done) < len(lines):
        write_atomically(out, b"".join(line + b"\n" for line in done))
    return {one["id"] for one in told if "error" not in one}


def _told(line: bytes) -> Line:
    """A line that a run has written; anything else is an error."""
    told: Line = json.loads(line)
    if not isinstance(told, dict) or "id" not in told or not told.keys() & {"error", "utterances"}:
        raise ValueError
    return told


def here(job: Job, utterances: Sequence[Utterance]) -> Iterator[Line]:
    """One after the other, in this process."""
    if utterances:
        recognizer = job.load()
        yield from (recognise(recognizer, utterance) for utterance in utterances)


def recognise(recognizer: Recognizer, utterance: Utterance) -> Line:
    """The line of an utterance; a recording that cannot be read has one as well, which says why."""
    about: Line = {"id": utterance.id, "audio": str(utterance.audio)}
    session = recognizer.session()
    finals: list[Final] = []
    try:
        for samples, rate in stream_audio(utterance.audio, piece_seconds=1.0):
            finals += [event for event in session.push(samples, rate) if isinstance(event, Final)]
        finals += [event for event in session.finish() if isinstance(event, Final)]
    except (HeadsyncError, OSError) as error:
        return {**about, "error": str(error)}
    text = " ".join(final.text for final in finals if final.text)
    seconds = round(session.audio_seconds, 3)
    return {**about, "seconds": seconds, "text": text, "utterances": [final.to_dict() for final in finals]}


def on_ray(workers: int | None = None, address: str | None = None) -> Run:
    """On a Ray cluster: the one at `address`, or else one of this machine; each worker takes one processor.

    Ray gives a task whose worker died to another one, as often as it takes.
    """
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError:
        raise ConfigError("--cluster ray needs Ray, which is not installed; pip install '.[cluster]'") from None

    def run(job: Job, utterances: Sequence[Utterance]) -> Iterator[Line]:
        started = not ray.is_initialized()
        if started:
            ray.init(address, num_cpus=None if address else workers, include_dashboard=False, log_to_driver=False)
        try:
            job.load()  # a model that is not there is told here, before a hundred workers find out
            task = ray.remote(num_cpus=1, max_retries=-1)(_task)
            most = TASKS_PER_WORKER * (workers or int(ray.cluster_resources().get("CPU", 1)))
            if workers and address:  # the cluster is larger, and would run all that wait at once
                most = workers
            yield from _collected(ray, task, job, utterances, most)
        finally:
            if started:
                ray.shutdown()

    return run


def _collected(ray: Any, task: Any, job: Job, utterances: Sequence[Utterance], most: int) -> Iterator[Line]:
    """Hand out tasks, so many at a time, and give back their lines as they come."""
    waiting: list[Any] = []
    for pile in _piles(utterances):
        waiting.append(task.remote(job, pile))
        while len(waiting) >= most:
            (ready, *_), waiting = ray.wait(waiting, num_returns=1)
            yield from ray.get(ready)
    while waiting:
        (ready, *_), waiting = ray.wait(waiting, num_returns=1)
        yield from ray.get(ready)


def _piles(utterances: Sequence[Utterance]) -> Iterable[list[Utterance]]:
    return (list(utterances[first : first + PER_TASK]) for first in range(0, len(utterances), PER_TASK))


def _task(job: Job, utterances: Sequence[Utterance]) -> list[Line]:
    """What a worker does with its pile."""
    recognizer = _loaded(job)
    return [recognise(recognizer, utterance) for utterance in utterances]


@lru_cache(maxsize=1)
def _loaded(job: Job) -> Recognizer:
    """A worker loads the model once."""
    return job.load()
