"""Reference word times by forced alignment with a model that is not the one under test; cached beside the manifest.

An aligner is a function of samples at 16 kHz and words. Its name identifies the model and its version: times are cached
by this name, the checksum of the audio file and the text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from headsync._atomic_write import write_atomically
from headsync.corpora.manifest import Progress, Utterance
from headsync.errors import DataError, HeadsyncError, nearest_name
from headsync.evaluation.latency import TimedWord
from headsync.frontend.audio import SAMPLE_RATE, FloatArray, mix_down, read_audio, resample

Align = Callable[[FloatArray, Sequence[str]], list[TimedWord] | None]  # None: the words cannot be aligned

SAVE_EVERY = 50  # utterances


@dataclass(frozen=True)
class Aligner:
    name: str
    align: Align


def load_aligner(name: str) -> Aligner:
    if name not in ALIGNERS:
        raise nearest_name("aligner", name, ALIGNERS)
    return ALIGNERS[name]()


def aligned_times(
    utterances: Sequence[Utterance], aligner: Aligner, cache: Path, progress: Progress | None = None
) -> dict[str, list[TimedWord]]:
    """The words of every utterance that can be aligned; those in the cache are not aligned again."""
    known, times = _read(cache), dict[str, list[TimedWord]]()
    for number, utterance in enumerate(utterances, 1):
        key = _key(utterance, aligner.name)
        if known.get(utterance.id, {}).get("key") != key:
            known[utterance.id] = {"key": key, "words": _align(utterance, aligner)}
            if number % SAVE_EVERY == 0:
                _write(cache, known)
        if words := known[utterance.id]["words"]:
            times[utterance.id] = [TimedWord(*word) for word in words]
        if progress:
            progress(number, len(utterances))
    _write(cache, known)
    return times


def _align(utterance: Utterance, aligner: Aligner) -> list[TimedWord] | None:
    samples, rate = read_audio(utterance.audio)
    words = utterance.text.split()
    return aligner.align(resample(mix_down(samples), rate), words) if words else None


def _key(utterance: Utterance, name: str) -> str:
    try:
        with utterance.audio.open("rb") as file:
            audio = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{utterance.audio}: cannot be read ({error.strerror}); check the manifest.") from None
    return hashlib.sha256(f"{name}\n{audio}\n{utterance.text}".encode()).hexdigest()


def _read(cache: Path) -> dict[str, Any]:
    try:
        known: dict[str, Any] = json.loads(cache.read_text(encoding="utf-8")) if cache.exists() else {}
    except (OSError, ValueError) as error:
        raise DataError(f"{cache}: these cached word times cannot be read ({error}); remove the file.") from None
    return known


def _write(cache: Path, known: dict[str, Any]) -> None:
    if known != _read(cache):
        write_atomically(cache, json.dumps(known, ensure_ascii=False, indent=0).encode())


def _pocketsphinx() -> Aligner:
    """PocketSphinx with its US English model; an utterance with a word outside its dictionary is not aligned."""
    try:
        from pocketsphinx import Decoder
    except ModuleNotFoundError:
        raise HeadsyncError(
            "--align pocketsphinx requires the package pocketsphinx: pip install 'headsync[evaluation]'"
        ) from None

    @cache  # loaded only if a recording has no cached times
    def loaded() -> Decoder:
        return Decoder(lm=None, samprate=SAMPLE_RATE, loglevel="FATAL")

    def align(samples: FloatArray, words: Sequence[str]) -> list[TimedWord] | None:
        decoder = loaded()
        spelt = [word.lower().strip('.,;:!?"()') for word in words]
        if not all(word and decoder.lookup_word(word) for word in spelt):
            return None
        decoder.set_align_text(" ".join(spelt))
        decoder.start_utt()
        pcm = np.clip(samples * 32768, -32768, 32767).astype("<i2").tobytes()
        decoder.process_raw(pcm, no_search=False, full_utt=True)
        decoder.end_utt()
        found = [part for part in decoder.seg() or () if part.word.partition("(")[0] in {*spelt}]
        if len(found) != len(words):
            return None
        rate = decoder.config["frate"]
        return [
            TimedWord(word, part.start_frame / rate, (part.end_frame + 1) / rate)
            for word, part in zip(words, found, strict=True)
        ]

    return Aligner(f"pocketsphinx {version('pocketsphinx')} en-us", align)


ALIGNERS: dict[str, Callable[[], Aligner]] = {"pocketsphinx": _pocketsphinx}
