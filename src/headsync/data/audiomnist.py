"""AudioMNIST: recordings of single digits, joined into strings that sound as much as possible like spoken ones.

This module finds the recordings, keeps the speakers of train, dev and test apart and writes the manifests;
`studio.py` makes each string. A recording depends only on the seed, its part and its number, so any number of workers
makes the same files, and a second run makes only what is missing.

With a folder of other speech (Kaldi lists, such as speechocean762) there is also speech without digits, for which the
right answer is silence, and two further lists for measuring: naturally spoken strings, and sentences without digits.
Manifests of further corpora add speech without digits that has nothing to do with those lists.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from headsync.data.kaldi import Spoken, read_kaldi
from headsync.data.manifest import Counts as Counts
from headsync.data.manifest import Utterance, read_manifest, write_manifest
from headsync.data.studio import DIGITS, OTHER_SPEECH, PARTS, Studio
from headsync.data.takes import Plan, Takes
from headsync.errors import DataError

RECIPE = 2  # raise it when the same seed would give other recordings
STRINGS = Counts(train=16_000, dev=400, test=600)
CLEAN_SHARE = 6  # as many train strings for one that is left clean, to begin training with
BABBLE_SHARE = 6.4  # as many train strings for one recording of babble
FEW_BABBLE_SHARE = 16  # and where there is less of it
FOREIGN_SHARE = 6.4  # and for one of speech from further corpora
AWAY_SHARE = 8 / 3  # and for one string as if it had been recorded with the other speech
SILENCE_STRINGS = 40  # in silence, and as many in babble
READER_SENTENCES = 60  # in which a teacher reads that there are words other than digits
VARIANTS = 20  # of a sentence with digits in it, for there are few

_TAKE = re.compile(r"(\d)_(.+)_\d+\.(?:wav|flac)", re.IGNORECASE)
_SOUNDS_LIKE_A_DIGIT = {*DIGITS, "won", "to", "too", "for", "fore", "ate"}
_SELDOM_SOUNDS_LIKE_ONE = {"to", "for"}  # in a long sentence, in which nobody stresses them
_DEV_SHARE = 10  # one of so many speakers of other speech is for development


def prepare(
    source: Path,
    out: Path,
    *,
    strings: Counts = STRINGS,
    speech: Path | None = None,
    foreign: Sequence[Path] = (),
    seed: int = 1,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Make the corpus under `out`; `progress` hears how many recordings are there and how many there will be."""
    out = Path(out)
    takes, sexes = find_takes(Path(source))
    spoken = {part: read_kaldi(Path(speech), part) for part in ("train", "test")} if speech else {}
    others = {part: without_digits(spoken, part) for part in ("train", "dev", "test")}
    told, among = told_sentences(spoken, "train"), tuple(among_words(spoken, "train"))
    plan = Plan(out, seed, takes, split_speakers(sexes), others, told, among, from_elsewhere(foreign))
    _stamp(plan)
    sizes = _sizes(strings) | _sizes_of_speech(plan, strings)
    jobs = [(part, index) for part, count in sizes.items() for index in range(count)]
    made: dict[str, list[Utterance]] = {part: [] for part in PARTS}
    for done, ((part, _), utterance) in enumerate(zip(jobs, _make_all(plan, jobs, workers), strict=True), 1):
        made[part].append(utterance)
        if progress:
            progress(done, len(jobs))
    made["train-strings"] = [one for one in made["train"] if OTHER_SPEECH not in one.speaker]
    made["train-all"] = made["train"] + made["train-among"]
    few = made["train-babble"][: strings.train // FEW_BABBLE_SHARE]
    made["train-voices"] = made["train"] + few
    made["train-mixed"] = made["train-strings"] + made["train-foreign"] + few
    made["train-heard"] = made["train"] + few + made["train-foreign"] + made["train-away"]
    made["train-mixed-away"] = made["train-mixed"] + made["train-away"]
    made["train-last"] = made["train-strings"] + few + made["train-away"]
    made["train-babbled"] = made["train-strings"] + made["train-babble"] + made["train-away"]
    made["train-said"] = [one for one in made["train-strings"] + made["train-away"] if one.text]
    made["train-pupil"] = made["train-babbled"] + made["train-foreign"]
    made["train-spelt"] = [*fully_told(made["train"]), *made["train-speech"]]
    made["train-letters"] = [*_twice(_listed(told)), *_letters_of(made, strings)]
    made["train-taught"] = [*_listed(told), *made["train-speech"], *_strings_of(made, strings)]
    made["train-unread"] = digits_of([*_listed(told), *made["train-speech"]])
    made["train-read"] = made["train-pupil"] + made["train-unread"]
    made["train-reader"] = [*made["train-said"], *made["train-foreign"], *made["train-babble"], *_few(others["train"])]
    made["dev-spelt"] = [*fully_told(made["dev-hard"]), *_listed(told_sentences(spoken, "dev"))]
    for part, utterances in made.items():
        write_manifest(out / f"{part}.jsonl", utterances)
    if speech:
        write_manifest(out / "natural.jsonl", _listed(natural_strings(spoken)))
        write_manifest(out / "sentences.jsonl", _listed(others["test"], keep_text=False))
        write_manifest(out / "dev-sentences.jsonl", _listed(others["dev"], keep_text=False))
        write_manifest(out / "dev-among.jsonl", _listed(among_words(spoken, "dev")))
        for part in ("train", "dev"):
            write_manifest(out / f"{part}-told.jsonl", _listed(_speech_of(spoken, part)))


def _twice(utterances: Iterable[Utterance]) -> list[Utterance]:
    once = list(utterances)
    return once + [replace(one, id=f"{one.id}-again") for one in once]


def _letters_of(made: dict[str, list[Utterance]], strings: Counts) -> list[Utterance]:
    """Of what is made and fully told: sentences, some of them beside a string, and a few strings alone."""
    return [*made["train-speech"][: strings.train * 5 // 16], *fully_told(made["train"])[: strings.train * 3 // 32]]


def _strings_of(made: dict[str, list[Utterance]], strings: Counts) -> list[Utterance]:
    """Strings and all that is said in them, some of them as if recorded with the other speech."""
    return fully_told(made["train"])[: strings.train // 4] + fully_told(made["train-away"])[: strings.train * 3 // 16]


def _sizes(strings: Counts) -> dict[str, int]:
    sizes = {"train": strings.train, "dev": strings.dev, "test": strings.test}
    sizes |= {"test-hard": strings.test, "test-phone": strings.test}
    sizes |= {"test-silence": min(SILENCE_STRINGS, strings.test), "dev-hard": strings.dev}
    return sizes | {"train-clean": strings.train // CLEAN_SHARE}


def _sizes_of_speech(plan: Plan, strings: Counts) -> dict[str, int]:
    sizes = {"train-speech": strings.train // 2 if plan.told else 0}
    sizes |= {"train-among": min(strings.train // 8, VARIANTS * len(plan.among))}
    sizes |= {"train-babble": round(strings.train / BABBLE_SHARE) if plan.others["train"] else 0}
    sizes |= {"train-foreign": round(strings.train / FOREIGN_SHARE) if plan.foreign else 0}
    sizes |= {"train-away": round(strings.train / AWAY_SHARE) if plan.others["train"] else 0}
    sizes |= {"dev-babble": min(SILENCE_STRINGS, strings.dev) if plan.others["dev"] else 0}
    return sizes | {"test-babble": min(SILENCE_STRINGS, strings.test) if plan.others["test"] else 0}


def _stamp(plan: Plan) -> None:
    """Say in the folder what it was made from, so that a second run never mixes two corpora."""
    others = {part: len(spoken) for part, spoken in plan.others.items()}
    stamp = {"corpus": "audiomnist", "recipe": RECIPE, "seed": plan.seed, "other_speech": others}
    stamp["speakers"] = {part: list(names) for part, names in plan.speakers.items()}
    path = plan.out / "corpus.json"
    known = text = json.dumps(stamp, indent=1) + "\n"
    if plan.foreign:  # which may come later: it is a part of its own
        text = json.dumps({**stamp, "foreign": len(plan.foreign)}, indent=1) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") not in (known, text):
        raise DataError(f"{plan.out}: this folder was made with another seed or source; name an empty folder.")
    plan.out.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def find_takes(source: Path) -> tuple[Takes, dict[str, str]]:
    """The recordings and the sex of every speaker, from the public tree or its `data` folder."""
    root = source / "data" if (source / "data").is_dir() else source
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []
    takes = {folder.name: found for folder in folders if (found := _takes_of(folder))}
    if not takes:
        raise DataError(
            f"{source}: no AudioMNIST recordings such as data/01/7_01_0.wav are there; "
            "clone https://github.com/soerenab/AudioMNIST and name its folder."
        )
    for speaker, by_digit in takes.items():
        for digit, recordings in enumerate(by_digit):
            if not recordings:
                raise DataError(
                    f"{root / speaker}: no recording of the digit {digit} is there; fetch the corpus again."
                )
    return takes, _sexes(root, takes)


def _takes_of(folder: Path) -> tuple[tuple[Path, ...], ...] | None:
    by_digit: list[list[Path]] = [[] for _ in DIGITS]
    for path in sorted(folder.iterdir()):
        if match := _TAKE.fullmatch(path.name):
            by_digit[int(match[1])].append(path)
    return tuple(tuple(paths) for paths in by_digit) if any(by_digit) else None


def _sexes(root: Path, takes: Takes) -> dict[str, str]:
    path = root / "audioMNIST_meta.txt"
    if not path.exists():
        return dict.fromkeys(takes, "unknown")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        return {speaker: str(meta.get(speaker, {}).get("gender", "unknown")).lower() for speaker in takes}
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path}: this list of speakers cannot be read ({error}); fetch it again.") from None


def split_speakers(sexes: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Speakers of train, dev and test: apart, both sexes in each where they suffice, and independent of the seed."""
    if len(sexes) < 3:
        raise DataError(f"there are recordings of {len(sexes)} speakers, at least 3 are needed to keep parts apart.")
    order = [sorted(sexes)[index] for index in np.random.default_rng(0).permutation(len(sexes))]
    women = [speaker for speaker in order if sexes[speaker] == "female"]
    men = [speaker for speaker in order if sexes[speaker] != "female"]
    share = len(women) / len(sexes)
    parts: dict[str, tuple[str, ...]] = {}
    for part, count in (("test", max(1, round(len(sexes) / 9))), ("dev", max(1, round(len(sexes) * 2 / 27)))):
        few = min(math.ceil(count * share), max(len(women) - 1, 0))  # the rarer sex must not run out before train
        few = max(few, count - len(men))
        parts[part] = tuple(sorted(women[:few] + men[: count - few]))
        women, men = women[few:], men[count - few :]
    return {"train": tuple(sorted(women + men)), "dev": parts["dev"], "test": parts["test"]}


def natural_strings(spoken: dict[str, list[Spoken]]) -> list[Spoken]:
    """Utterances that consist of digits only: for measuring, never for training."""
    return [one for utterances in spoken.values() for one in utterances if _only_digits(one)]


def without_digits(spoken: dict[str, list[Spoken]], part: str) -> tuple[Spoken, ...]:
    """Speech without anything that sounds like a digit.

    Train and dev share the corpus's train part by speakers, without those who are heard in a natural string or in test.
    """
    speech = spoken.get("test", []) if part == "test" else _speech_of(spoken, part)
    return tuple(one for one in speech if not _SOUNDS_LIKE_A_DIGIT.intersection(one.text.split()))


def from_elsewhere(manifests: Sequence[Path]) -> tuple[Spoken, ...]:
    """Speech without digits from the manifests of further corpora, all of about the same weight."""
    unwanted = _SOUNDS_LIKE_A_DIGIT - _SELDOM_SOUNDS_LIKE_ONE
    sources = [[one for one in read_manifest(path) if not unwanted & set(one.text.split())] for path in manifests]
    most = max(map(len, sources), default=0)
    spoken = [one for source in sources if source for one in source * round(most / len(source))]
    return tuple(Spoken(one.id, one.audio, one.text, one.speaker) for one in spoken)


def told_sentences(spoken: dict[str, list[Spoken]], part: str) -> tuple[Spoken, ...]:
    """Sentences of train or dev without digits; those with digits are in `among_words`."""
    return tuple(one for one in _speech_of(spoken, part) if not set(DIGITS).intersection(one.text.split()))


def _speech_of(spoken: dict[str, list[Spoken]], part: str) -> list[Spoken]:
    kept_apart = {one.speaker for one in [*natural_strings(spoken), *spoken.get("test", [])]}
    speech = spoken.get("train", [])
    speakers = sorted({one.speaker for one in speech} - kept_apart)
    wanted = {speaker for n, speaker in enumerate(speakers) if (n % _DEV_SHARE == 0) == (part == "dev")}
    return [one for one in speech if one.speaker in wanted]


def fully_told(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Strings of digits alone, and recordings of nobody: all that is said in them is in their text."""
    return [one for one in utterances if OTHER_SPEECH not in one.speaker and bool(one.text) == bool(one.speaker)]


def digits_of(utterances: Iterable[Utterance]) -> list[Utterance]:
    """The same recordings, of whose words only digits are told."""
    return [replace(one, text=_digits_in(one.text)) for one in utterances]


def _digits_in(text: str) -> str:
    return " ".join(word for word in text.split() if word in DIGITS)


def _few(sentences: Sequence[Spoken]) -> list[Utterance]:
    """A few sentences without digits, of as many speakers as possible, for a teacher that reads."""
    return list(_listed(sentences[:: max(1, len(sentences) // READER_SENTENCES)], keep_text=False))


def among_words(spoken: dict[str, list[Spoken]], part: str) -> list[Spoken]:
    """Sentences of train or dev with digits in them: the text is the digits alone."""
    chosen = _speech_of(spoken, part)
    told = [one._replace(text=_digits_in(one.text)) for one in chosen]
    return [one for one in told if one.text]


def _only_digits(one: Spoken) -> bool:
    return bool(one.text) and set(one.text.split()) <= set(DIGITS)


def _listed(spoken: Iterable[Spoken], keep_text: bool = True) -> Iterator[Utterance]:
    for one in spoken:
        info = soundfile.info(one.audio)
        yield Utterance(one.id, one.audio, one.text if keep_text else "", info.frames / info.samplerate, one.speaker)


def _make_all(plan: Plan, jobs: Sequence[tuple[str, int]], workers: int) -> Iterator[Utterance]:
    """Every recording in the order of the jobs, by one process or several."""
    if workers <= 1:
        studio = Studio(plan)
        yield from (studio.make(part, index) for part, index in jobs)
        return
    context = multiprocessing.get_context("spawn")  # a forked copy of a process with threads may hang
    with ProcessPoolExecutor(workers, context, _open_studio, (plan,)) as pool:
        yield from pool.map(_make_in_worker, jobs, chunksize=16)


_studio: Studio


def _open_studio(plan: Plan) -> None:
    global _studio  # a worker process has no other place to keep what it has loaded
    _studio = Studio(plan)


def _make_in_worker(job: tuple[str, int]) -> Utterance:
    return _studio.make(*job)
