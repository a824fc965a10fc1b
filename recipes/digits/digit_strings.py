"""One recording of joined digits, from its seed to the samples; `prepare_digits.py` lists the recordings.

Single digits are trimmed, placed into their speaker's own background noise, and overlapped or separated. Hard strings
are also stretched, surrounded by other speech and degraded. A recording depends only on the sources, the seed, its part
and its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

import audio_effects
from digit_corpus import DIGITS, MARGIN_SAMPLES, Spoken, Takes, as_float, read_sound, read_take, read_trimmed
from digit_sounds import Spectrum, background, join, match_spectrum, noise_spectrum, speech_spectrum, tempo, trim
from headsync.frontend.audio import SAMPLE_RATE, FloatArray

# The number of a part enters the seed of its recordings and must not change.
PARTS = {"dev": 1, "test": 2, "test-hard": 3, "test-phone": 4, "test-silence": 5, "dev-hard": 6, "train-clean": 7}
PARTS |= {"train-hard": 8, "dev-babble": 11, "test-babble": 12}

LONGEST_SECONDS = 16.0
AROUND_SECONDS = 30.0  # of noise or babble, before and after the strings of test-silence and *-babble
BABBLE_DB = (-30.0, -10.0)  # level of the babble relative to the string
LENGTH_CHANCES = (0.11, 0.10, 0.12, 0.14, 0.12, 0.11, 0.10, 0.08, 0.06, 0.06)  # of 1 to 10 digits; the mean is 5
CLEAN_PEAK_DB = -6.0
OTHER_SPEAKER = "speech-"  # prefix of speakers who say no digits

Generator = np.random.Generator


class Recording(NamedTuple):
    """The samples of a string, its text and its speakers."""

    samples: FloatArray
    text: str
    speaker: str


@dataclass(frozen=True)
class Sources:
    """Everything that determines the recordings."""

    seed: int
    takes: Takes
    speakers: dict[str, tuple[str, ...]]  # train, dev, test
    others: dict[str, tuple[Spoken, ...]]  # train, dev, test: speech without digits

    def speakers_of(self, part: str) -> tuple[str, ...]:
        return self.speakers[part.split("-")[0]]

    def speech_of(self, part: str) -> tuple[Spoken, ...]:
        return self.others[part.split("-")[0]]


@dataclass(frozen=True)
class Style:
    """The random variation of a string."""

    speed: tuple[float, float] = (1.0, 1.0)
    tempo_chance: float = 0.0
    equal_levels: bool = False
    long_silence_chance: float = 0.03
    digital_silence_chance: float = 0.0
    other_speech_chance: float = 0.0
    other_spectrum_chance: float = 0.0

    def silence(self, generator: Generator) -> float:
        """Seconds before or after the speech."""
        long = generator.random() < self.long_silence_chance
        return float(generator.uniform(0.6, 3.0) if long else generator.uniform(0.0, 0.6))


CLEAN = Style()
HARD = Style(
    speed=(0.8, 1.35),  # a factor above one also moves formants towards those of women and children
    tempo_chance=0.5,
    equal_levels=True,
    long_silence_chance=0.15,
    digital_silence_chance=0.05,
    other_speech_chance=0.2,
    other_spectrum_chance=0.5,
)


class StringMaker:
    """Makes recordings from the sources; keeps the audio files it has read."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.take = lru_cache(maxsize=None)(read_take)
        self.other = lru_cache(maxsize=1500)(read_trimmed)  # about 200 MB of four-second utterances
        self.room = lru_cache(maxsize=None)(self._room)
        self.other_spectrum = lru_cache(maxsize=None)(lambda path: speech_spectrum(as_float(self.other(path))))
        self.speaker_spectrum = lru_cache(maxsize=None)(self._speaker_spectrum)

    def record(self, part: str, index: int) -> Recording:
        """The recording with this number."""
        generator = self._generator(part, index)
        if part.endswith("-hard"):
            return self._hard(part, generator)
        clean = self._clean(part if part == "train-clean" else part.split("-")[0], index)
        if part.endswith("-babble"):
            return clean._replace(samples=self._in_babble(clean.samples, part, generator))
        if part == "test-phone":
            line = audio_effects.telephone(clean.samples, companded=index % 2 == 0)
            return clean._replace(samples=audio_effects.set_level(line, CLEAN_PEAK_DB))
        return clean._replace(samples=_in_silence(clean.samples, generator)) if part == "test-silence" else clean

    def _generator(self, part: str, index: int) -> Generator:
        return np.random.default_rng([self.sources.seed, PARTS[part], index])

    def _clean(self, part: str, index: int) -> Recording:
        clean = self._string(part, self._generator(part, index), CLEAN)
        return clean._replace(samples=audio_effects.set_level(clean.samples, CLEAN_PEAK_DB))

    def _hard(self, part: str, generator: Generator) -> Recording:
        hard = self._string(part, generator, HARD)
        voices = (lambda: self._babblers(part, generator)) if self.sources.speech_of(part) else None
        return hard._replace(samples=audio_effects.degrade(hard.samples, generator, voices))

    def _string(self, part: str, generator: Generator, style: Style) -> Recording:
        """Joined digits of one speaker or two; digits beyond the longest recording are dropped."""
        speakers = generator.choice(self.sources.speakers_of(part), size=2 if generator.random() < 0.1 else 1).tolist()
        digits = generator.integers(10, size=1 + generator.choice(10, p=LENGTH_CHANCES))
        factor = float(generator.uniform(*style.speed))
        lead, trail = (round(factor * SAMPLE_RATE * style.silence(generator)) for _ in range(2))
        stretch = float(generator.uniform(0.8, 1.15)) if generator.random() < style.tempo_chance else None
        pieces, gaps = [], []
        for digit in digits:
            pieces.append(self._piece(str(generator.choice(speakers)), int(digit), stretch, generator))
            gaps.append(_gap(generator))
        pieces, gains = _levelled(pieces, style, generator)
        count = _number_that_fits(pieces, gaps, round(LONGEST_SECONDS * SAMPLE_RATE * factor) - lead - trail)
        starts = _starts(pieces[:count], gaps, lead)
        length = starts[-1] + len(pieces[count - 1]) + trail
        gain = 0.0 if generator.random() < style.digital_silence_chance else float(np.mean(gains[:count]))
        room = self.room(speakers[0]) * gain**2
        samples = join(pieces[:count], starts, background(room, length, generator))
        text = " ".join(DIGITS[digit] for digit in digits[:count])
        string = Recording(samples, text, "+".join(dict.fromkeys(speakers)))
        return self._varied(string, part, style, factor, room, generator) if style is HARD else string

    def _varied(
        self, string: Recording, part: str, style: Style, factor: float, room: Spectrum, generator: Generator
    ) -> Recording:
        """The string at another speed, and often with the spectrum of other speech or between other speech."""
        samples, speech = audio_effects.speed(string.samples, factor), self.sources.speech_of(part)
        if generator.random() < style.other_spectrum_chance and speech:
            samples = match_spectrum(samples, self.other_spectrum(_pick(speech, generator).audio))
        string = string._replace(samples=samples)
        if speech and generator.random() < style.other_speech_chance:
            return self._between_other_speech(string, part, room, generator)
        return string

    def _piece(self, speaker: str, digit: int, stretch: float | None, generator: Generator) -> FloatArray:
        recordings = self.sources.takes[speaker][digit]
        take = self.take(recordings[generator.integers(len(recordings))])
        before, after = generator.integers(MARGIN_SAMPLES + 1, size=2)
        first, end = max(0, take.first - int(before)), min(len(take.samples), take.end + int(after))
        samples = as_float(take.samples[first:end])
        if stretch is None:
            return samples
        return tempo(samples, 1.0 / float(np.clip(stretch * generator.uniform(0.94, 1.06), 0.75, 1.2)))

    def _between_other_speech(self, string: Recording, part: str, room: Spectrum, generator: Generator) -> Recording:
        """The string with other speech before it, after it or both, within the longest recording."""
        level = _amplitude(string.samples)
        where = generator.integers(1, 4)  # 1 before, 2 after, 3 both
        pieces, starts, speakers = [string.samples], [0], [string.speaker]
        for side in (1, 2):
            voice, speaker = self._other_speech(part, generator)
            voice = voice * np.float32(level * audio_effects.decibel(generator.uniform(-6, 6)) / _amplitude(voice))
            pause = int(generator.uniform(0.1, 0.6) * SAMPLE_RATE)
            length = sum(map(len, pieces)) + len(voice) + 2 * pause
            if not where & side or length > LONGEST_SECONDS * SAMPLE_RATE:
                continue
            pieces = [voice, *pieces] if side == 1 else [*pieces, voice]
            starts = _starts(pieces, [pause] * len(pieces), 0)
            speakers.append(speaker)
        noise = background(room, starts[-1] + len(pieces[-1]), generator)
        return Recording(join(pieces, starts, noise), string.text, "+".join(dict.fromkeys(speakers)))

    def _other_speech(self, part: str, generator: Generator) -> tuple[FloatArray, str]:
        """Up to three seconds of speech without digits, varied like the strings, and the speaker."""
        one = _pick(self.sources.speech_of(part), generator)
        samples = as_float(self.other(one.audio))
        if generator.random() < HARD.other_spectrum_chance:
            speaker = str(generator.choice(self.sources.speakers_of(part)))
            samples = match_spectrum(samples, self.speaker_spectrum(speaker))
        if generator.random() < HARD.tempo_chance:
            samples = tempo(samples, 1.0 / float(generator.uniform(0.8, 1.15)))
        samples = audio_effects.speed(samples, float(generator.uniform(*HARD.speed)))
        length = min(len(samples), int(generator.uniform(0.5, 3.0) * SAMPLE_RATE))
        begin = int(generator.integers(len(samples) - length + 1))
        return samples[begin : begin + length], f"{OTHER_SPEAKER}{one.speaker}"

    def _babblers(self, part: str, generator: Generator) -> list[FloatArray]:
        speech = self.sources.speech_of(part)
        return [as_float(self.other(_pick(speech, generator).audio)) for _ in range(generator.integers(3, 7))]

    def _in_babble(self, samples: FloatArray, part: str, generator: Generator) -> FloatArray:
        padded = np.pad(samples, round(AROUND_SECONDS * SAMPLE_RATE))
        babble = audio_effects.noise_of("babble", len(padded), generator, self._babblers(part, generator))
        return audio_effects.add_noise(padded, babble, -float(generator.uniform(*BABBLE_DB)))

    def _speaker_spectrum(self, speaker: str) -> Spectrum:
        return speech_spectrum(np.concatenate([read_sound(paths[0]) for paths in self.sources.takes[speaker]]))

    def _room(self, speaker: str) -> Spectrum:
        """The spectrum of a speaker's background noise, measured before and after some of the digits."""
        guard = 30 * SAMPLE_RATE // 1000  # not counted, next to the speech
        stretches = []
        for recordings in self.sources.takes[speaker]:
            for path in recordings[:2]:
                samples = read_sound(path)
                first, end = trim(samples)
                stretches += [samples[: max(0, first - guard)], samples[end + guard :]]
        return noise_spectrum(stretches)


def _gap(generator: Generator) -> int:
    """Samples between two digits; digits overlap by a negative number."""
    low, high = ((-0.08, -0.02), (0.0, 0.1), (0.1, 0.4), (0.4, 1.0))[generator.choice(4, p=(0.35, 0.35, 0.2, 0.1))]
    return round(generator.uniform(low, high) * SAMPLE_RATE)


def _levelled(pieces: Sequence[FloatArray], style: Style, generator: Generator) -> tuple[list[FloatArray], list[float]]:
    """The pieces, at nearly equal levels if the style requires it, and the gains."""
    if not style.equal_levels:
        return list(pieces), [1.0] * len(pieces)
    gains = [0.05 * audio_effects.decibel(generator.uniform(-3.0, 3.0)) / _amplitude(piece) for piece in pieces]
    return [piece * np.float32(gain) for piece, gain in zip(pieces, gains, strict=True)], gains


def _number_that_fits(pieces: Sequence[FloatArray], gaps: Sequence[int], available_samples: int) -> int:
    ends = [start + len(piece) for start, piece in zip(_starts(pieces, gaps, 0), pieces, strict=True)]
    return max(1, sum(end <= available_samples for end in ends))


def _starts(pieces: Sequence[FloatArray], gaps: Sequence[int], lead: int) -> list[int]:
    starts = [lead]
    for before, after, gap in zip(pieces, pieces[1:], gaps, strict=False):
        overlap = min(max(-gap, 0), len(before) // 3, len(after) // 3)  # never more than two digits at once
        starts.append(starts[-1] + len(before) - overlap + max(gap, 0))
    return starts


def _in_silence(samples: FloatArray, generator: Generator) -> FloatArray:
    padded = np.pad(samples, round(AROUND_SECONDS * SAMPLE_RATE))
    noise = audio_effects.noise_of(str(generator.choice(["white", "pink"])), len(padded), generator)
    return padded + noise * np.float32(audio_effects.decibel(generator.uniform(-65.0, -50.0)))


def _pick(pool: Sequence[Spoken], generator: Generator) -> Spoken:
    return pool[int(generator.integers(len(pool)))]


def _amplitude(samples: FloatArray) -> float:
    return max(math.sqrt(audio_effects.speech_power(samples)), 1e-6)
