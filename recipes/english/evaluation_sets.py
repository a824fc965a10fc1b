"""Manifests for evaluation, under runs/english/sets.

    python recipes/english/evaluation_sets.py SHARED      # a folder with speechocean762 and LibriSpeech/test-other

- dev-clean-300: a fixed choice of LibriSpeech dev-clean, for every decision; dev-clean: all of it.
- commonvoice-{dev,test}, harpervalley-{dev,test}: speakers held out. test-clean is in runs/english/data/librispeech.
- speechocean-test and test-other: the utterances in SHARED.
- hour: chapters of dev-clean joined with pauses, one recording of an hour; hour-utterances: the same utterances alone.
- background: five minutes each of silence, hum, white noise, music (chords) and babble of eight voices of dev-clean;
  its text is empty, so every recognised word is an error.
- synthetic: sentences of dev-clean-300 by the voices of flite (if it is installed), with the word times of the
  synthesis in synthetic.words.json: a check of `aligner.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import soundfile as sf
from speech import RATE, RUNS, Utterance, fixed_subset, levelled, read_manifest, samples_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "digits"))

FOLDER = RUNS / "sets"
HOUR, BACKGROUND = 3600.0, 300.0  # seconds
SYNTHETIC, VOICES = 80, ("slt", "rms", "awb", "kal16")
Row = dict[str, object]


def row(utterance: Utterance) -> Row:
    known = {"id": utterance.id, "audio": str(utterance.audio.resolve()), "text": utterance.text or ""}
    return known | {"seconds": utterance.seconds, "speaker": utterance.speaker}


def write(name: str, rows: Iterable[Row]) -> None:
    lines = list(rows)
    (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{name}: {len(lines)} recordings, {sum(float(str(line['seconds'])) for line in lines) / 3600:.2f} h")


def save(name: str, samples: np.ndarray, text: str) -> Row:
    """A recording of FOLDER/audio."""
    path = FOLDER / "audio" / f"{name}.flac"
    path.parent.mkdir(parents=True, exist_ok=True)
    sf.write(path, samples, RATE)
    return {"id": name, "audio": str(path), "text": text, "seconds": len(samples) / RATE, "speaker": name}


def speechocean(shared: Path) -> Iterable[Row]:
    from digit_corpus import read_kaldi

    for one in read_kaldi(shared / "speechocean762", "test"):
        info = sf.info(one.audio)
        known = {"id": one.id, "audio": str(one.audio), "text": one.text, "speaker": one.speaker}
        yield known | {"seconds": info.frames / info.samplerate}


def test_other(shared: Path) -> Iterable[Row]:
    for path in sorted((shared / "LibriSpeech/test-other").rglob("*.trans.txt")):
        for line in path.read_text().splitlines():
            name, text = line.split(maxsplit=1)
            audio = path.parent / f"{name}.flac"
            known = {"id": name, "audio": str(audio), "text": text, "speaker": name.split("-")[0]}
            yield known | {"seconds": sf.info(audio).duration}


def hour() -> tuple[Row, list[Row]]:
    """One hour of dev-clean utterances in order, with pauses of 0.3 to 1.5 s."""
    rng, parts, rows, total = np.random.default_rng(0), list[np.ndarray](), list[Row](), 0
    for utterance in read_manifest("librispeech", "dev"):
        samples = levelled(samples_of(utterance))
        if total + len(samples) > HOUR * RATE:
            break
        parts += [samples, np.zeros(int(rng.uniform(0.3, 1.5) * RATE), np.float32)]
        total += len(parts[-1]) + len(parts[-2])
        rows.append(row(utterance))
    return save("hour", np.concatenate(parts), " ".join(str(r["text"]) for r in rows)), rows


def background() -> Iterable[Row]:
    rng, length = np.random.default_rng(0), int(BACKGROUND * RATE)
    time_N = np.arange(length) / RATE
    yield save("silence", rng.normal(0, 1e-4, length), "")
    yield save("hum", 0.05 * np.sum([np.sin(2 * np.pi * 50 * k * time_N) / k for k in range(1, 8)], 0), "")
    yield save("white-noise", rng.normal(0, 0.05, length), "")
    chords = [
        sum(
            np.sin(2 * np.pi * k * 220 * 2 ** (note / 12) * time_N[:RATE]) / k
            for note in rng.choice(24, 3, False)
            for k in range(1, 6)
        )
        * np.exp(-2 * time_N[:RATE])
        for _ in range(int(BACKGROUND))
    ]
    yield save("music", 0.05 * np.concatenate(chords), "")
    babble, voices = np.zeros(length), fixed_subset(read_manifest("librispeech", "dev"), 400)
    for n in range(8):
        voice = np.concatenate([levelled(samples_of(u)) for u in voices[50 * n : 50 * (n + 1)]])
        babble += np.resize(voice, length)
    yield save("babble", 0.3 * babble / np.abs(babble).max(), "")


def flite(*arguments: str) -> list[tuple[str, float]]:
    """Run flite; phones with their ends in seconds (0 if not requested)."""
    printed = subprocess.run(["flite", *arguments], capture_output=True, text=True, check=True).stdout.split()
    return [(phone, float(end or 0)) for phone, _, end in (item.partition(":") for item in printed)]


def phones_of(word: str) -> int:
    return sum(phone != "pau" for phone, _ in flite("-ps", "-t", word, "-o", "none"))


def spoken(text: str, name: str, voice: str) -> tuple[Row, list[dict[str, object]]] | None:
    """A synthetic recording and its words with times; None if the words alone do not have the phones of the text."""
    path = FOLDER / "audio" / f"{name}.wav"
    segments = flite("-psdur", "-voice", voice, "-t", text, "-o", str(path))
    phones = [
        (begin, end)
        for (_, begin), (phone, end) in zip([("", 0.0), *segments], segments, strict=False)
        if phone != "pau"
    ]
    words, place = list[dict[str, object]](), 0
    for word in text.split():
        count = phones_of(word)
        if not 0 < count <= len(phones) - place:
            return None
        words.append({"text": word, "start": phones[place][0], "end": phones[place + count - 1][1]})
        place += count
    if place != len(phones):
        return None
    known: Row = {"id": name, "audio": str(path), "text": text, "speaker": voice}
    return known | {"seconds": sf.info(path).duration}, words


def synthetic(sentences: Iterable[str]) -> None:
    """Write the set `synthetic` and its word times."""
    found = [spoken(text, f"synthetic-{n}", VOICES[n % len(VOICES)]) for n, text in enumerate(sentences)]
    made = [one for one in found if one is not None]
    write("synthetic", (line for line, _ in made))
    times = {str(line["id"]): words for line, words in made}
    (FOLDER / "synthetic.words.json").write_text(json.dumps(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path)
    shared = parser.parse_args().shared.resolve()
    FOLDER.mkdir(parents=True, exist_ok=True)
    dev = read_manifest("librispeech", "dev")
    write("dev-clean-300", map(row, fixed_subset(dev, 300)))
    write("dev-clean", map(row, dev))
    for corpus in ("commonvoice", "harpervalley"):
        for split in ("dev", "test"):
            write(f"{corpus}-{split}", map(row, read_manifest(corpus, split)))
    write("speechocean-test", speechocean(shared))
    write("test-other", test_other(shared))
    whole, utterances = hour()
    write("hour", [whole])
    write("hour-utterances", utterances)
    write("background", background())
    if shutil.which("flite"):
        synthetic((u.text or "").lower() for u in fixed_subset(dev, SYNTHETIC))


if __name__ == "__main__":
    main()
