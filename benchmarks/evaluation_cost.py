"""The cost of evaluation: CPU time of `evaluate`, divided by that of the sessions alone.

    python benchmarks/evaluation_cost.py MANIFEST [--model digits-en] [--limit 60] [--rounds 5]

Both stream the same recordings in chunks of 0.1 s, alternating. Reference word times beside the manifest are read
before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from headsync.corpora.manifest import Utterance, read_manifest
from headsync.evaluation.evaluate import PIECE_SECONDS, evaluate
from headsync.evaluation.reference_times import find_word_times, read_word_times
from headsync.frontend.audio import stream_audio
from headsync.recognizer import Recognizer


def recognise(recognizer: Recognizer, utterances: Sequence[Utterance]) -> float:
    began = time.process_time()
    for utterance in utterances:
        session = recognizer.session()
        for samples, rate in stream_audio(utterance.audio, PIECE_SECONDS):
            session.push(samples, rate)
        session.finish()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--model", default="digits-en")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    recognizer, utterances = Recognizer.load(given.model), read_manifest(given.manifest)[: given.limit]
    path = find_word_times(given.manifest)
    word_times = read_word_times(path) if path else None
    recognise(recognizer, utterances[:2])
    evaluate(recognizer, utterances[:2], word_times=word_times)
    alone, both = [], []
    for _ in range(given.rounds):
        alone.append(recognise(recognizer, utterances))
        began = time.process_time()
        evaluate(recognizer, utterances, word_times=word_times)
        both.append(time.process_time() - began)
    print(f"recognising {min(alone):.2f} s, evaluating {min(both):.2f} s, ratio {min(both) / min(alone):.3f}")
    print("all rounds:", ", ".join(f"{b / a:.3f}" for a, b in zip(alone, both, strict=True)))


if __name__ == "__main__":
    main()
