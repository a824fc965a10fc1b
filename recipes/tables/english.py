"""Manifests of recipes/tables/english.toml, from the files of recipes/english.

    python recipes/tables/english.py

Training texts are those of `recipes/english/label.py`. The development set is the part of dev-clean that the teacher
has read, with its case and punctuation; the test set is a fixed choice of test-clean. Characters that the start model's
vocabulary lacks are removed from training and development texts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headsync.corpora.manifest import Utterance, read_manifest, write_manifest
from headsync.text.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parents[2]
TESTED = 600  # utterances of test-clean


def spelled(text: str, vocabulary: Vocabulary) -> str:
    """The text without the characters that are not tokens."""
    known = {token for token in vocabulary.tokens if len(token) == 1}
    return " ".join(word for word in ("".join(c for c in w if c in known) for w in text.split()) if word)


def with_texts(utterances: Iterable[Utterance], texts: dict[str, str], vocabulary: Vocabulary) -> list[Utterance]:
    """The utterances that have a text, with it."""
    found = [(u, spelled(texts[u.id], vocabulary)) for u in utterances if u.id in texts]
    return [Utterance(u.id, u.audio, text, u.seconds, u.speaker) for u, text in found if text]


def fixed_choice(utterances: Sequence[Utterance], count: int) -> list[Utterance]:
    """The same choice in every run."""
    return sorted(utterances, key=lambda u: hashlib.sha256(u.id.encode()).hexdigest())[:count]


def readings(path: Path) -> dict[str, str]:
    """What the teacher read, by utterance."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row["text"] for row in rows}


def development(english: Path) -> dict[str, str]:
    """Reference texts with the teacher's formatting."""
    sys.path.insert(0, str(ROOT / "recipes/english"))
    from label import formatted

    read = readings(english / "labels/librispeech-dev-tiny.jsonl")
    spoken = read_manifest(english / "data/librispeech/dev.jsonl")
    return {u.id: formatted(u.text, read[u.id]) for u in spoken if u.id in read}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--english", type=Path, default=Path("runs/english"), help="output of recipes/english")
    parser.add_argument("--out", type=Path, default=Path("runs/tables/english"))
    arguments = parser.parse_args()
    english: Path = arguments.english
    vocabulary = Vocabulary.load(english / "start/vocabulary.json")
    labelled = read_manifest(english / "labels/train.jsonl")
    train = with_texts(labelled, {u.id: u.text for u in labelled}, vocabulary)
    dev = with_texts(read_manifest(english / "data/librispeech/dev.jsonl"), development(english), vocabulary)
    test = fixed_choice(read_manifest(english / "data/librispeech/test.jsonl"), TESTED)
    for name, utterances in (("train", train), ("dev", dev), ("test-clean", test)):
        write_manifest(arguments.out / f"{name}.jsonl", utterances)
        hours = sum(u.seconds for u in utterances) / 3600
        print(f"{name}: {len(utterances)} utterances, {hours:.2f} h")


if __name__ == "__main__":
    main()
