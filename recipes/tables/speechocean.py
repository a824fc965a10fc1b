"""Manifests of the read sentences of speechocean762, in lower case and without digit strings.

    headsync prepare kaldi SPEECHOCEAN762 runs/data/speechocean
    python recipes/tables/speechocean.py runs/data/speechocean

Writes sentences-train.jsonl, sentences-dev.jsonl and sentences-test.jsonl. Train and dev divide the speakers of the
published train part; test is the published test part. The natural digit strings are a test set of the digit models
(recipes/digits); some of their speakers are in these manifests, so a digit model must not start from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from headsync.corpora.manifest import Utterance, read_manifest, write_manifest
from headsync.errors import HeadsyncError

DEV_SHARE = 12  # every twelfth speaker
DIGITS = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}


def sentences(utterances: Iterable[Utterance]) -> list[Utterance]:
    lowered = [replace(utterance, text=utterance.text.lower()) for utterance in utterances]
    return [utterance for utterance in lowered if not set(utterance.text.split()) <= DIGITS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    known = sentences(read_manifest(folder / "train.jsonl"))
    held_out = set(sorted({utterance.speaker for utterance in known})[::DEV_SHARE])
    parts = {
        "train": [utterance for utterance in known if utterance.speaker not in held_out],
        "dev": [utterance for utterance in known if utterance.speaker in held_out],
        "test": sentences(read_manifest(folder / "test.jsonl")),
    }
    for part, utterances in parts.items():
        write_manifest(folder / f"sentences-{part}.jsonl", utterances)
        hours = sum(utterance.seconds for utterance in utterances) / 3600
        print(
            f"{part}: {len(utterances)} sentences, {len({u.speaker for u in utterances})} speakers, {hours:.2f} hours"
        )


if __name__ == "__main__":
    try:
        main()
    except HeadsyncError as error:
        raise SystemExit(f"speechocean.py: {error}") from None
