"""The studio: one recording of joined digits, from its seed to the file. `audiomnist.py` says which ones to make.

Single takes are trimmed, evened and laid into their speaker's own room noise, run together or set apart, and for
training roughened (`augment.py`). Each recording depends only on the plan, its part and its number.

Digits come from one corpus and all other speech from another, and a network would gladly learn to tell the corpora
apart instead of the words. So each is often given the sound of the other (`match_spectrum`), both are varied in the
same ways, and some speech that is not digits is made of the digits' own recordings, played backwards or cut and put
together wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headsync.audio import SAMPLE_RATE, FloatArray
from headsync.data import augment
from headsync.data.kaldi import Spoken
from headsync.data.manifest import Utterance
from headsync.data.takes import (
    MARGIN_SAMPLES,
    Made,
    Plan,
    as_float,
    read_sound,
    read_take,
    read_trimmed,
    store,
    stored,
)

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Parts by number: the number is part of every recording's seed, so the order must stay.
PARTS = (
    *("train", "dev", "test", "test-hard", "test-phone", "test-silence", "dev-hard", "train-clean"),
    *("train-speech", "train-among"),  # sentences told word by word; sentences of whose words the digits are told
    *("train-babble", "dev-babble", "test-babble"),  # a string, or none, in a room full of voices
    "train-foreign",  # other speech from elsewhere, of which no test is made
    "train-away",  # strings as if they had been recorded where the other speech was
)

LONGEST_SECONDS = 16.0
OTHER_SPEECH = "speech-"  # before the names of those who say no digits
ROOM_GUARD_SAMPLES = 30 * SAMPLE_RATE // 1000  # so near to speech it is not the room alone
SILENCE_SECONDS = 30.0  # around the strings of test-silence
BABBLE_SECONDS = 30.0  # around those of dev-babble and test-babble
BABBLE_DB = (-30.0, -10.0)  # of that babble, against the string
FOREIGN_SECONDS = (2.0, 8.0)  # of other speech from elsewhere, whose utterances are long
ALONE_CHANCE = 0.6  # of a sentence without a string beside it
NOTHING_CHANCE, OTHER_SPEECH_CHANCE, NONSENSE_CHANCE = 0.05, 0.15, 0.08  # of train recordings without any digit
OTHER_SOUND_CHANCE = 0.5  # of a recording that is given the sound of the other corpus
SAME_ONSET = ({6, 7}, {4, 5})  # the beginning of one and the rest of the other may still be heard as the other
LENGTH_CHANCES = (0.11, 0.10, 0.12, 0.14, 0.12, 0.11, 0.10, 0.08, 0.06, 0.06)  # of 1 to 10 digits; the mean is 5
CLEAN_PEAK_DB = -6.0
AWAY_SPEED = (0.85, 1.45)  # of voices: children's formants lie higher, and they do not speak faster for it
AWAY_DURATION = (0.55, 1.1)  # of their digits, against those that are read one by one
AWAY_KBIT = (24.0, 40.0)

Generator = np.random.Generator
Spectrum = npt.NDArray[np.float64]


class Place(NamedTuple):
    """Where a recording was made, by its sound."""

    speech: Spectrum  # long-term power of what is said
    noise: Spectrum  # power of the background, where the speech has one


@dataclass(frozen=True)
class Manner:
    """How a string is spoken."""

    speed: tuple[float, float]
    tempo_chance: float
    evened: bool
    long_silence_chance: float
    digital_silence_chance: float
    other_speech_chance: float
    other_sound_chance: float

    def silence(self, generator: Generator) -> float:
        """Seconds before or after the speech."""
        long = generator.random() < self.long_silence_chance
        return float(generator.uniform(0.6, 3.0) if long else generator.uniform(0.0, 0.6))


CLEAN = Manner(
    speed=(1.0, 1.0),
    tempo_chance=0.0,
    evened=False,
    long_silence_chance=0.03,
    digital_silence_chance=0.0,
    other_speech_chance=0.0,
    other_sound_chance=0.0,
)
ROUGH = Manner(
    speed=(0.8, 1.35),  # above one also moves men's formants towards those of women and children
    tempo_chance=0.5,
    evened=True,
    long_silence_chance=0.15,
    digital_silence_chance=0.05,
    other_speech_chance=0.2,
    other_sound_chance=OTHER_SOUND_CHANCE,
)


class Studio:
    """What one process needs to make recordings: the plan, and the sounds it has already read."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.take = lru_cache(maxsize=None)(read_take)
        self.other = lru_cache(maxsize=1500)(read_trimmed)  # about 200 MB of four-second utterances
        self.room = lru_cache(maxsize=None)(self._room)
        self.sound = lru_cache(maxsize=None)(lambda path: augment.speech_spectrum(as_float(self.other(path))))
        self.voice = lru_cache(maxsize=None)(self._voice)
        self.place = lru_cache(maxsize=None)(self._place)

    def make(self, part: str, index: int) -> Utterance:
        """The recording of that number, from an earlier run where it is whole."""
        name = f"{part}-{index:06d}"
        path = self.plan.out / part / f"{index // 1000:03d}" / f"{name}.flac"
        made = stored(path, name)
        if made is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            store(path, self.record(part, index))
            made = stored(path, name)
            assert made is not None
        return made

    def record(self, part: str, index: int) -> Made:
        """What is heard in the recording of that number."""
        generator = np.random.default_rng([self.plan.seed, PARTS.index(part), index])
        if part in ("train", "test-hard", "dev-hard"):
            return self._rough(part, generator)
        if part == "train-speech":
            return self._told_speech(part, generator)
        if part == "train-among":
            return self._among_words(part, generator)
        if part == "train-babble":
            return self._babble(part, generator)
        if part == "train-foreign":
            return self._foreign_speech(part, generator)
        if part == "train-away":
            return self._away(part, generator)
        if part.endswith("-babble"):
            return self._around_babble(part, index, generator)
        clean_part = part if part in ("dev", "train-clean") else "test"  # phone and silence: the same strings as test
        clean = self._clean(clean_part, np.random.default_rng([self.plan.seed, PARTS.index(clean_part), index]))
        if part == "test-phone":
            line = augment.telephone(clean.samples, companded=index % 2 == 0)
            return clean._replace(samples=augment.set_level(line, CLEAN_PEAK_DB))
        return clean._replace(samples=_in_silence(clean.samples, generator)) if part == "test-silence" else clean

    def _clean(self, part: str, generator: Generator) -> Made:
        made = self._string(part, generator, CLEAN)
        return made._replace(samples=augment.set_level(made.samples, CLEAN_PEAK_DB))

    def _rough(self, part: str, generator: Generator) -> Made:
        """A string as in training; in train itself some recordings are speech without digits, or no speech at all."""
        kind = generator.random() if part == "train" else 1.0
        if kind < NOTHING_CHANCE:
            return Made(self._nothing(part, generator), "", "")
        if kind < NOTHING_CHANCE + OTHER_SPEECH_CHANCE and self.plan.speech(part):
            made = self._other_speech(part, generator)
        elif kind < NOTHING_CHANCE + OTHER_SPEECH_CHANCE + NONSENSE_CHANCE:
            made = self._string(part, generator, ROUGH, nonsense=True)
        else:
            made = self._string(part, generator, ROUGH)
        voices = (lambda: self._babblers(part, generator)) if self.plan.speech(part) else None
        return made._replace(samples=augment.roughen(made.samples, generator, voices))

    def _string(self, part: str, generator: Generator, manner: Manner, nonsense: bool = False) -> Made:
        """Digits of one speaker, sometimes of two, joined; what does not fit into the longest recording is left out."""
        take_piece = self._no_digit if nonsense else self._piece
        speakers = generator.choice(self.plan.voices(part), size=2 if generator.random() < 0.1 else 1).tolist()
        digits = generator.integers(10, size=1 + generator.choice(10, p=LENGTH_CHANCES))
        factor = float(generator.uniform(*manner.speed))
        lead, trail = (round(factor * SAMPLE_RATE * manner.silence(generator)) for _ in range(2))
        stretch = float(generator.uniform(0.8, 1.15)) if generator.random() < manner.tempo_chance else None
        pieces, gaps = [], []
        for digit in digits:
            pieces.append(take_piece(_one_of(speakers, generator), int(digit), stretch, generator))
            gaps.append(_gap(generator))
        pieces, gains = _evened(pieces, manner, generator)
        count, starts, length = _laid(pieces, gaps, lead, trail, factor)
        gain = 0.0 if generator.random() < manner.digital_silence_chance else float(np.mean(gains[:count]))
        room = self.room(speakers[0]) * gain**2
        joined = augment.join(pieces[:count], starts, augment.background(room, length, generator))
        sound = augment.speed(joined, factor) if factor != 1.0 else joined
        if manner.other_sound_chance and generator.random() < manner.other_sound_chance and self.plan.speech(part):
            sound = augment.match_spectrum(sound, self.sound(_pick(self.plan.speech(part), generator).audio))
        text = "" if nonsense else " ".join(DIGITS[digit] for digit in digits[:count])
        made = Made(sound, text, "+".join(dict.fromkeys(speakers)))
        if self.plan.speech(part) and generator.random() < manner.other_speech_chance:
            return self._among_other_speech(made, part, room, generator)
        return made

    def _piece(self, speaker: str, digit: int, stretch: float | None, generator: Generator) -> FloatArray:
        recordings = self.plan.takes[speaker][digit]
        take = self.take(recordings[generator.integers(len(recordings))])
        before, after = generator.integers(MARGIN_SAMPLES + 1, size=2)
        first, end = max(0, take.first - int(before)), min(len(take.samples), take.end + int(after))
        samples = as_float(take.samples[first:end])
        if stretch is None:
            return samples
        return augment.tempo(samples, 1.0 / float(np.clip(stretch * generator.uniform(0.94, 1.06), 0.75, 1.2)))

    def _no_digit(self, speaker: str, digit: int, stretch: float | None, generator: Generator) -> FloatArray:
        """A digit played backwards, or the beginning of one with the rest of another."""
        piece = self._piece(speaker, digit, stretch, generator)
        if generator.random() < 0.5:
            return piece[::-1].copy()
        others = [d for d in range(10) if d != digit and {d, digit} not in SAME_ONSET]
        rest = self._piece(speaker, int(generator.choice(others)), stretch, generator)
        cut, cut_rest = (round(len(p) * generator.uniform(0.35, 0.6)) for p in (piece, rest))
        level = np.float32(_amplitude(piece) / _amplitude(rest))
        halves = [piece[:cut], rest[cut_rest:] * level]
        return augment.join(halves, [0, cut - cut // 8], np.zeros(cut - cut // 8 + len(halves[1]), dtype=np.float32))

    def _among_other_speech(self, made: Made, part: str, room: Spectrum, generator: Generator) -> Made:
        """The string with a stretch of other speech before it, after it, or both, as far as there is space."""
        level = _amplitude(made.samples)
        where = generator.integers(1, 4)  # 1 before, 2 after, 3 both
        pieces, starts, speakers = [made.samples], [0], [made.speaker]
        for side in (1, 2):
            voice, speaker = self._stretch_of_speech(part, generator)
            voice = voice * np.float32(level * augment.decibel(generator.uniform(-6, 6)) / _amplitude(voice))
            pause = int(generator.uniform(0.1, 0.6) * SAMPLE_RATE)
            length = sum(map(len, pieces)) + len(voice) + 2 * pause
            if not where & side or length > LONGEST_SECONDS * SAMPLE_RATE:
                continue
            pieces = [voice, *pieces] if side == 1 else [*pieces, voice]
            starts = _starts(pieces, [pause] * len(pieces), 0)
            speakers.append(speaker)
        noise = augment.background(room, starts[-1] + len(pieces[-1]), generator)
        return Made(augment.join(pieces, starts, noise), made.text, "+".join(dict.fromkeys(speakers)))

    def _stretch_of_speech(self, part: str, generator: Generator) -> tuple[FloatArray, str]:
        one = _pick(self.plan.speech(part), generator)
        samples = self._varied_speech(one, part, generator)
        length = min(len(samples), int(generator.uniform(0.5, 3.0) * SAMPLE_RATE))
        begin = int(generator.integers(len(samples) - length + 1))
        return samples[begin : begin + length], f"{OTHER_SPEECH}{one.speaker}"

    def _other_speech(self, part: str, generator: Generator) -> Made:
        one = _pick(self.plan.speech(part), generator)
        samples = self._varied_speech(one, part, generator)
        return Made(samples[: int(LONGEST_SECONDS * SAMPLE_RATE)], "", f"{OTHER_SPEECH}{one.speaker}")

    def _among_words(self, part: str, generator: Generator) -> Made:
        """A sentence in which digits are said: the only ones in the sound of other speech."""
        one = _pick(self.plan.among, generator)
        made = Made(self._varied_speech(one, part, generator), one.text, f"{OTHER_SPEECH}{one.speaker}")
        return made._replace(samples=augment.roughen(made.samples, generator, lambda: self._babblers(part, generator)))

    def _told_speech(self, part: str, generator: Generator) -> Made:
        """A sentence, often with a string of digits before it or after it, and the words of all of it."""
        one = _pick(self.plan.told, generator)
        voice = self._varied_speech(one, part, generator)
        made = Made(voice, one.text, f"{OTHER_SPEECH}{one.speaker}")
        if generator.random() >= ALONE_CHANCE:
            string = self._string(part, generator, replace(ROUGH, other_speech_chance=0.0))
            pause = int(generator.uniform(0.1, 0.6) * SAMPLE_RATE)
            if len(voice) + pause + len(string.samples) <= LONGEST_SECONDS * SAMPLE_RATE:
                level = _amplitude(string.samples) * augment.decibel(generator.uniform(-6, 6)) / _amplitude(voice)
                both = [made._replace(samples=voice * np.float32(level)), string]
                made = _one_after_another(both if generator.random() < 0.5 else both[::-1], pause)
        return made._replace(samples=augment.roughen(made.samples, generator, lambda: self._babblers(part, generator)))

    def _varied_speech(self, one: Spoken, part: str, generator: Generator) -> FloatArray:
        """Other speech, varied as the strings are, and often with the sound of a digits' speaker."""
        samples = as_float(self.other(one.audio))
        if generator.random() < OTHER_SOUND_CHANCE:
            samples = augment.match_spectrum(samples, self.voice(_one_of(self.plan.voices(part), generator)))
        if generator.random() < ROUGH.tempo_chance:
            samples = augment.tempo(samples, 1.0 / float(generator.uniform(0.8, 1.15)))
        return augment.speed(samples, float(generator.uniform(*ROUGH.speed)))

    def _babblers(self, part: str, generator: Generator) -> list[FloatArray]:
        pool = self.plan.speech(part)
        return [as_float(self.other(_pick(pool, generator).audio)) for _ in range(generator.integers(3, 7))]

    def _foreign_speech(self, part: str, generator: Generator) -> Made:
        """A stretch of speech from a further corpus, often with the sound of the first; or a string beside one."""
        if generator.random() < 0.2:
            made = self._string(part, generator, replace(ROUGH, other_speech_chance=1.0))
        else:
            made = self._other_speech(part, generator)
            length = min(len(made.samples), round(SAMPLE_RATE * generator.uniform(*FOREIGN_SECONDS)))
            begin = int(generator.integers(len(made.samples) - length + 1))
            made = made._replace(samples=made.samples[begin : begin + length])
            if generator.random() < OTHER_SOUND_CHANCE and self.plan.others["train"]:
                sound = self.sound(_pick(self.plan.others["train"], generator).audio)
                made = made._replace(samples=augment.match_spectrum(made.samples, sound))
        return made._replace(samples=augment.roughen(made.samples, generator, lambda: self._babblers(part, generator)))

    def _away(self, part: str, generator: Generator) -> Made:
        """A string as if recorded where the other speech was: voice, tempo, spectrum, background and coding."""
        speaker = _one_of(self.plan.voices(part), generator)
        digits = generator.integers(10, size=1 + generator.choice(10, p=LENGTH_CHANCES))
        factor, duration = generator.uniform(*AWAY_SPEED), generator.uniform(*AWAY_DURATION)
        stretch = float(np.clip(factor * duration, 0.6, 1.4))
        pieces = [self._piece(speaker, int(digit), stretch, generator) for digit in digits]
        pieces, _ = _evened(pieces, ROUGH, generator)
        lead, trail = (round(factor * SAMPLE_RATE * ROUGH.silence(generator)) for _ in range(2))
        gaps = [_gap(generator) for _ in pieces]
        count, starts, length = _laid(pieces, gaps, lead, trail, factor)
        place = self.place(_pick(self.plan.speech(part), generator).audio)
        sound = augment.join(pieces[:count], starts, np.zeros(length, dtype=np.float32))
        sound = augment.match_spectrum(augment.speed(sound, factor), place.speech)
        sound = sound + augment.background(place.noise * augment.speech_power(sound), len(sound), generator)
        if generator.random() < 0.5:
            sound = augment.roughen(sound, generator, lambda: self._babblers(part, generator))
        sound = augment.coded(sound, generator.uniform(*AWAY_KBIT))
        text = " ".join(DIGITS[digit] for digit in digits[:count])
        return Made(augment.set_level(sound, generator.uniform(-40.0, -1.0)), text, speaker)

    def _babble(self, part: str, generator: Generator) -> Made:
        """Several voices at once, for as long as a recording may be; in half of them a string can be made out."""
        made = self._string(part, generator, replace(ROUGH, other_speech_chance=0.0))
        before, after = (round(SAMPLE_RATE * generator.uniform(1.0, 8.0)) for _ in range(2))
        alone = generator.random() < 0.5 or before + len(made.samples) + after > LONGEST_SECONDS * SAMPLE_RATE
        length = before + after + (0 if alone else len(made.samples))
        babble = augment.noise_of("babble", length, generator, self._babblers(part, generator))
        if alone:
            made = Made(augment.set_level(babble, generator.uniform(-50.0, -5.0)), "", "")
        else:
            string = np.pad(made.samples, (before, after))
            made = made._replace(samples=augment.add_noise(string, babble, float(generator.uniform(3.0, 30.0))))
        return made._replace(samples=augment.roughen(made.samples, generator, None))

    def _around_babble(self, part: str, index: int, generator: Generator) -> Made:
        """The clean string of that number, with voices before, beneath and after it."""
        clean_part = part.removesuffix("-babble")
        clean = self._clean(clean_part, np.random.default_rng([self.plan.seed, PARTS.index(clean_part), index]))
        string = np.pad(clean.samples, round(BABBLE_SECONDS * SAMPLE_RATE))
        babble = augment.noise_of("babble", len(string), generator, self._babblers(part, generator))
        return clean._replace(samples=augment.add_noise(string, babble, -float(generator.uniform(*BABBLE_DB))))

    def _nothing(self, part: str, generator: Generator) -> FloatArray:
        """Noise or silence, down to the digital silence of a muted microphone."""
        length = int(generator.uniform(1.0, 6.0) * SAMPLE_RATE)
        babble = ["babble"] if self.plan.speech(part) else []
        kind = _one_of([*augment.NOISES, "room", "silence", *babble], generator)
        if kind == "silence":
            return np.zeros(length, dtype=np.float32)
        if kind == "room":
            noise = augment.background(self.room(_one_of(self.plan.voices(part), generator)), length, generator)
        else:
            voices = self._babblers(part, generator) if kind == "babble" else ()
            noise = augment.noise_of(kind, length, generator, voices)
        return augment.set_level(noise, generator.uniform(-70.0, -10.0))

    def _voice(self, speaker: str) -> Spectrum:
        """The long-term spectrum of a digits' speaker."""
        first = [read_sound(recordings[0]) for recordings in self.plan.takes[speaker]]
        return augment.speech_spectrum(np.concatenate(first))

    def _place(self, path: Path) -> Place:
        """What a recording of other speech tells of where it was made."""
        samples = read_sound(path)
        first, end = augment.trim(samples)
        around = [samples[: max(0, first - ROOM_GUARD_SAMPLES)], samples[end + ROOM_GUARD_SAMPLES :]]
        power = max(augment.speech_power(samples), 1e-12)
        return Place(augment.speech_spectrum(samples[first:end]), augment.noise_spectrum(around) / power)

    def _room(self, speaker: str) -> Spectrum:
        """The spectrum of the noise in which a speaker was recorded, from before and after some of the digits."""
        stretches = []
        for recordings in self.plan.takes[speaker]:
            for path in recordings[:2]:
                samples = read_sound(path)
                first, end = augment.trim(samples)
                stretches += [samples[: max(0, first - ROOM_GUARD_SAMPLES)], samples[end + ROOM_GUARD_SAMPLES :]]
        return augment.noise_spectrum(stretches)


def _gap(generator: Generator) -> int:
    """Samples between two digits; below zero they overlap, as natural speech runs together."""
    low, high = ((-0.08, -0.02), (0.0, 0.1), (0.1, 0.4), (0.4, 1.0))[generator.choice(4, p=(0.35, 0.35, 0.2, 0.1))]
    return round(generator.uniform(low, high) * SAMPLE_RATE)


def _evened(pieces: Sequence[FloatArray], manner: Manner, generator: Generator) -> tuple[list[FloatArray], list[float]]:
    """The pieces at about one level, or as they were recorded; and the gains that made them so."""
    if not manner.evened:
        return list(pieces), [1.0] * len(pieces)
    gains = [0.05 * augment.decibel(generator.uniform(-3.0, 3.0)) / _amplitude(piece) for piece in pieces]
    return [piece * np.float32(gain) for piece, gain in zip(pieces, gains, strict=True)], gains


def _laid(
    pieces: Sequence[FloatArray], gaps: Sequence[int], lead: int, trail: int, factor: float
) -> tuple[int, list[int], int]:
    """How many pieces fit into the longest recording when it is played so much faster, their starts, and its length."""
    count = _that_fit(pieces, gaps, round(LONGEST_SECONDS * SAMPLE_RATE * factor) - lead - trail)
    starts = _starts(pieces[:count], gaps, lead)
    return count, starts, starts[-1] + len(pieces[count - 1]) + trail


def _that_fit(pieces: Sequence[FloatArray], gaps: Sequence[int], room_samples: int) -> int:
    """How many of the pieces fit, at least one."""
    ends = [start + len(piece) for start, piece in zip(_starts(pieces, gaps, 0), pieces, strict=True)]
    return max(1, sum(end <= room_samples for end in ends))


def _starts(pieces: Sequence[FloatArray], gaps: Sequence[int], lead: int) -> list[int]:
    starts = [lead]
    for before, after, gap in zip(pieces, pieces[1:], gaps, strict=False):
        overlap = min(max(-gap, 0), len(before) // 3, len(after) // 3)  # never more than two digits at once
        starts.append(starts[-1] + len(before) - overlap + max(gap, 0))
    return starts


def _one_after_another(parts: Sequence[Made], pause: int) -> Made:
    starts = _starts([part.samples for part in parts], [pause] * len(parts), 0)
    silence = np.zeros(starts[-1] + len(parts[-1].samples), dtype=np.float32)
    samples = augment.join([part.samples for part in parts], starts, silence)
    text, speaker = (
        sign.join(words) for sign, words in zip(" +", zip(*(p[1:] for p in parts), strict=True), strict=True)
    )
    return Made(samples, text, speaker)


def _in_silence(samples: FloatArray, generator: Generator) -> FloatArray:
    padded = np.pad(samples, round(SILENCE_SECONDS * SAMPLE_RATE))
    noise = augment.noise_of(_one_of(["white", "pink"], generator), len(padded), generator)
    return padded + noise * np.float32(augment.decibel(generator.uniform(-65.0, -50.0)))


def _one_of(names: Sequence[str], generator: Generator) -> str:
    return str(generator.choice(names))


def _pick(pool: Sequence[Spoken], generator: Generator) -> Spoken:
    return pool[int(generator.integers(len(pool)))]


def _amplitude(samples: FloatArray) -> float:
    return max(math.sqrt(augment.speech_power(samples)), 1e-6)
