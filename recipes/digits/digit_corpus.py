"""The recordings behind the digit test sets: AudioMNIST's single digits, and speech without digits (speechocean762)."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile

from digit_sounds import trim
from headsync.errors import DataError
from headsync.frontend.audio import SAMPLE_RATE, FloatArray, mix_down, resample

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MARGIN_SAMPLES = 60 * SAMPLE_RATE // 1000  # kept around a digit

_FILE = re.compile(r"(\d)_(.+)_\d+\.(?:wav|flac)", re.IGNORECASE)
_SOUNDS_LIKE_A_DIGIT = {*DIGITS, "won", "to", "too", "for", "fore", "ate"}
_DEV_SHARE = 10  # every tenth speaker of speechocean762's train part is used for development

Takes = dict[str, tuple[tuple[Path, ...], ...]]  # speaker -> digit -> recordings


class Take(NamedTuple):
    """One recorded digit with a margin, and the first and last sample of the speech in it."""

    samples: npt.NDArray[np.int16]
    first: int
    end: int


class Spoken(NamedTuple):
    """An utterance of a corpus with Kaldi lists; the text is in lower case."""

    id: str
    audio: Path
    text: str
    speaker: str


def find_takes(source: Path) -> tuple[Takes, dict[str, str]]:
    """The recordings and the sex of every speaker, from the public tree or its `data` folder."""
    root = source / "data" if (source / "data").is_dir() else source
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []
    takes = {folder.name: found for folder in folders if (found := _takes_of(folder))}
    if not takes:
        raise DataError(
            f"{source}: found no AudioMNIST recordings such as data/01/7_01_0.wav; "
            "clone https://github.com/soerenab/AudioMNIST and pass its folder."
        )
    for speaker, by_digit in takes.items():
        for digit, recordings in enumerate(by_digit):
            if not recordings:
                raise DataError(f"{root / speaker}: no recording of the digit {digit}; download the corpus again.")
    return takes, _sexes(root, takes)


def _takes_of(folder: Path) -> tuple[tuple[Path, ...], ...] | None:
    by_digit: list[list[Path]] = [[] for _ in DIGITS]
    for path in sorted(folder.iterdir()):
        if match := _FILE.fullmatch(path.name):
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
        raise DataError(f"{path}: invalid list of speakers ({error}); download it again.") from None


def split_speakers(sexes: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Disjoint speakers of train, dev and test, with both sexes in each where possible; independent of the seed."""
    if len(sexes) < 3:
        raise DataError(f"found recordings of {len(sexes)} speakers; disjoint parts require at least 3.")
    order = [sorted(sexes)[index] for index in np.random.default_rng(0).permutation(len(sexes))]
    women = [speaker for speaker in order if sexes[speaker] == "female"]
    men = [speaker for speaker in order if sexes[speaker] != "female"]
    share = len(women) / len(sexes)
    parts: dict[str, tuple[str, ...]] = {}
    for part, count in (("test", max(1, round(len(sexes) / 9))), ("dev", max(1, round(len(sexes) * 2 / 27)))):
        few = min(math.ceil(count * share), max(len(women) - 1, 0))  # leaves women for train
        few = max(few, count - len(men))
        parts[part] = tuple(sorted(women[:few] + men[: count - few]))
        women, men = women[few:], men[count - few :]
    return {"train": tuple(sorted(women + men)), "dev": parts["dev"], "test": parts["test"]}


def read_kaldi(speech: Path, part: str) -> list[Spoken]:
    """The utterances of one part of such a corpus."""
    texts, audio, speakers = (_read_list(speech / part / name) for name in ("text", "wav.scp", "utt2spk"))
    found = []
    for name, text in texts.items():
        if name not in audio or name not in speakers:
            raise DataError(f"{speech / part}: {name} is in text but not in wav.scp and utt2spk; download them again.")
        path = Path(os.path.abspath(speech / audio[name]))
        if not path.is_file():
            raise DataError(f"{speech / part / 'wav.scp'}: {path} does not exist; download the recordings.")
        found.append(Spoken(name, path, text.lower(), speakers[name]))
    return found


def _read_list(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        raise DataError(f"{path}: no such list; pass a folder with {{train,test}}/{{text,wav.scp,utt2spk}}.") from None
    split = (line.split(maxsplit=1) for line in lines if line.strip())
    return {parts[0]: parts[1].strip() if len(parts) > 1 else "" for parts in split}


def natural_strings(spoken: dict[str, list[Spoken]]) -> list[Spoken]:
    """Utterances that consist of digits only."""
    return [one for utterances in spoken.values() for one in utterances if _only_digits(one)]


def without_digits(spoken: dict[str, list[Spoken]], part: str) -> tuple[Spoken, ...]:
    """Utterances of train, dev or test without any word that sounds like a digit.

    Train and dev divide the speakers of the corpus's train part. Speakers of natural strings or of test are excluded.
    """
    speech = spoken.get("test", []) if part == "test" else _speech_of(spoken, part)
    return tuple(one for one in speech if not _SOUNDS_LIKE_A_DIGIT.intersection(one.text.split()))


def digits_among_words(spoken: dict[str, list[Spoken]], part: str) -> list[Spoken]:
    """Sentences of train or dev that contain digits; the text is the digits alone."""
    reduced = [one._replace(text=_digits_in(one.text)) for one in _speech_of(spoken, part)]
    return [one for one in reduced if one.text]


def _speech_of(spoken: dict[str, list[Spoken]], part: str) -> list[Spoken]:
    excluded = {one.speaker for one in [*natural_strings(spoken), *spoken.get("test", [])]}
    speech = spoken.get("train", [])
    speakers = sorted({one.speaker for one in speech} - excluded)
    wanted = {speaker for n, speaker in enumerate(speakers) if (n % _DEV_SHARE == 0) == (part == "dev")}
    return [one for one in speech if one.speaker in wanted]


def _only_digits(one: Spoken) -> bool:
    return bool(one.text) and set(one.text.split()) <= set(DIGITS)


def _digits_in(text: str) -> str:
    return " ".join(word for word in text.split() if word in DIGITS)


def read_take(path: Path) -> Take:
    """A recorded digit at 16 kHz, without most of the silence around it."""
    samples = read_sound(path)
    first, end = trim(samples)
    begin = max(0, first - MARGIN_SAMPLES)
    kept = samples[begin : end + MARGIN_SAMPLES]
    return Take(as_int16(kept), first - begin, end - begin)


def read_trimmed(path: Path) -> npt.NDArray[np.int16]:
    """An utterance at 16 kHz, without the silence around it."""
    samples = read_sound(path)
    first, end = trim(samples)
    return as_int16(samples[first:end])


def read_sound(path: Path) -> FloatArray:
    """The samples at 16 kHz, decoded by libsndfile: the recordings must not change with headsync's decoders."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return resample(mix_down(samples), rate)


def as_float(samples: npt.NDArray[np.int16]) -> FloatArray:
    return samples.astype(np.float32) / np.float32(32768.0)


def as_int16(samples: FloatArray) -> npt.NDArray[np.int16]:
    return np.clip(np.round(samples * 32768.0), -32768, 32767).astype(np.int16)
