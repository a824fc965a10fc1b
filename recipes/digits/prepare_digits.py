"""Build the digit test sets from AudioMNIST, and with --speech from speechocean762.

    python recipes/digits/prepare_digits.py AUDIOMNIST OUT --speech SPEECHOCEAN762 --workers 2

Speakers of train, dev and test are disjoint. A recording depends only on the seed, its part and its number: any number
of workers makes the same files, and a second run makes only missing files. recipes/digits/README.md lists the sets.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import soundfile

from digit_corpus import (
    Spoken,
    as_int16,
    digits_among_words,
    find_takes,
    natural_strings,
    read_kaldi,
    split_speakers,
    without_digits,
)
from digit_strings import PARTS, Recording, Sources, StringMaker
from headsync._atomic_write import in_one_move
from headsync.corpora.manifest import Counts, Utterance, write_manifest
from headsync.errors import DataError, HeadsyncError
from headsync.frontend.audio import SAMPLE_RATE

VERSION = 2  # increase when the same seed gives other recordings
STRINGS = Counts(train=2_666, dev=400, test=600)
LONG_STRINGS = 40  # of test-silence and of each babble set, which last over a minute each

Job = tuple[str, int]  # part and number


@dataclass(frozen=True)
class Maker:
    """Writes recordings below a folder."""

    out: Path
    strings: StringMaker

    def __call__(self, job: Job) -> Utterance:
        """The recording of a job; one that an earlier run has written is kept."""
        part, index = job
        name = f"{part}-{index:06d}"
        path = self.out / part / f"{index // 1000:03d}" / f"{name}.flac"
        found = _read(path, name)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, self.strings.record(part, index))
            found = _read(path, name)
            assert found is not None
        return found


def prepare(
    source: Path, out: Path, *, speech: Path | None = None, strings: Counts = STRINGS, seed: int = 1, workers: int = 1
) -> None:
    """Write the recordings and manifests of all sets to `out`."""
    takes, sexes = find_takes(Path(source))
    spoken = {part: read_kaldi(Path(speech), part) for part in ("train", "test")} if speech else {}
    others = {part: without_digits(spoken, part) for part in ("train", "dev", "test")}
    sources = Sources(seed, takes, split_speakers(sexes), others)
    _refuse_another_corpus(Path(out), sources)
    made: dict[str, list[Utterance]] = {part: [] for part in PARTS}
    jobs = [(part, index) for part, count in _sizes(sources, strings).items() for index in range(count)]
    for (part, _), utterance in zip(jobs, _make_all(Path(out), sources, jobs, workers), strict=True):
        made[part].append(utterance)
    lists = {part: utterances for part, utterances in made.items() if utterances}
    if speech:
        lists["natural"] = list(_listed(natural_strings(spoken)))
        lists["sentences"] = list(_listed(others["test"], keep_text=False))
        lists["dev-sentences"] = list(_listed(others["dev"], keep_text=False))
        lists["dev-among"] = list(_listed(digits_among_words(spoken, "dev")))
    for name, utterances in lists.items():
        write_manifest(Path(out) / f"{name}.jsonl", utterances)


def _sizes(sources: Sources, strings: Counts) -> dict[str, int]:
    sizes = {"dev": strings.dev, "test": strings.test, "test-hard": strings.test, "test-phone": strings.test}
    sizes |= {"test-silence": min(LONG_STRINGS, strings.test), "dev-hard": strings.dev}
    sizes |= {"train-clean": strings.train, "train-hard": strings.train}
    sizes |= {"dev-babble": min(LONG_STRINGS, strings.dev) if sources.others["dev"] else 0}
    return sizes | {"test-babble": min(LONG_STRINGS, strings.test) if sources.others["test"] else 0}


def _refuse_another_corpus(out: Path, sources: Sources) -> None:
    """Record the sources in the folder; refuse a folder that was made from others."""
    others = {part: len(spoken) for part, spoken in sources.others.items()}
    stamp = {"corpus": "audiomnist", "recipe": VERSION, "seed": sources.seed, "other_speech": others}
    stamp["speakers"] = {part: list(names) for part, names in sources.speakers.items()}
    path, text = out / "corpus.json", json.dumps(stamp, indent=1) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise DataError(f"{out}: this folder was made with another seed or source; choose an empty folder.")
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _make_all(out: Path, sources: Sources, jobs: Sequence[Job], workers: int) -> Iterator[Utterance]:
    """The recordings in the order of the jobs."""
    if workers <= 1:
        yield from map(Maker(out, StringMaker(sources)), jobs)
        return
    context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
    with ProcessPoolExecutor(workers, context, _start_worker, (out, sources)) as pool:
        yield from pool.map(_make_in_worker, jobs, chunksize=16)


_maker: Maker


def _start_worker(out: Path, sources: Sources) -> None:
    global _maker
    _maker = Maker(out, StringMaker(sources))


def _make_in_worker(job: Job) -> Utterance:
    return _maker(job)


def _write(path: Path, recording: Recording) -> None:
    """Write a FLAC file in one move; its tags hold text and speaker, so that a second run can read them."""
    form = (SAMPLE_RATE, 1, "PCM_16")
    with in_one_move(path) as unfinished, soundfile.SoundFile(unfinished, "w", *form, format="FLAC") as file:
        file.title, file.artist = recording.text, recording.speaker
        file.write(as_int16(recording.samples))


def _read(path: Path, name: str) -> Utterance | None:
    """The recording of an earlier run; None if it is missing or damaged."""
    try:
        with soundfile.SoundFile(path) as file:
            return Utterance(name, path, file.title, file.frames / SAMPLE_RATE, file.artist)
    except soundfile.LibsndfileError:
        return None


def _listed(spoken: Iterable[Spoken], keep_text: bool = True) -> Iterator[Utterance]:
    for one in spoken:
        info = soundfile.info(one.audio)
        yield Utterance(one.id, one.audio, one.text if keep_text else "", info.frames / info.samplerate, one.speaker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="AUDIOMNIST", help="folder of AudioMNIST")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write to")
    parser.add_argument("--speech", type=Path, help="folder of speechocean762")
    for part in ("train", "dev", "test"):
        parser.add_argument(f"--{part}", type=int, default=getattr(STRINGS, part), help=f"number of {part} strings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    given = parser.parse_args()
    strings = Counts(given.train, given.dev, given.test)
    prepare(given.source, given.out, speech=given.speech, strings=strings, seed=given.seed, workers=given.workers)
    print(f"{given.out}: ready.")


if __name__ == "__main__":
    try:
        main()
    except HeadsyncError as error:
        raise SystemExit(f"prepare_digits.py: {error}") from None
