"""The cost of evaluation: CPU time of `evaluate`, divided by that of the sessions alone.

    python benchmarks/evaluation_cost.py MANIFEST [--model english] [--limit 20] [--rounds 5] [--normalise english]
        [--align pocketsphinx]

Each recording is evaluated, then recognised alone, in chunks of 0.1 s; the times are minima of the rounds, summed over
recordings. Evaluating includes the final figures and the reading of the reference word times, from a file beside the
manifest or the cache of an aligner, which is filled first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from headsync.cli.evaluate import ReferenceTimes
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.evaluation.evaluate import PIECE_SECONDS, evaluate
from headsync.evaluation.normalise import Normalisation
from headsync.frontend.audio import stream_audio
from headsync.recognizer import Recognizer


def recognise(recognizer: Recognizer, utterance: Utterance) -> None:
    session = recognizer.session()
    for samples, rate in stream_audio(utterance.audio, PIECE_SECONDS):
        session.push(samples, rate)
    session.finish()


def measure(
    recognizer: Recognizer,
    manifest: Path,
    utterances: Sequence[Utterance],
    normalise: Normalisation,
    reference: ReferenceTimes,
) -> tuple[list[float], list[float]]:
    """Seconds of each recording alone, and of its evaluation; the last of these is the rest of the evaluation."""
    alone, both = list[float](), list[float]()
    began = time.process_time()

    def after(done: int, total: int) -> None:
        nonlocal began
        ended = time.process_time()
        both.append(ended - began)
        recognise(recognizer, utterances[done - 1])
        began = time.process_time()
        alone.append(began - ended)

    _, word_times = reference.read(manifest, utterances)
    evaluate(recognizer, utterances, normalise=normalise, word_times=word_times, progress=after)
    both.append(time.process_time() - began)
    return alone, both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--model", default="english")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--normalise", default="english")
    parser.add_argument("--align", choices=["pocketsphinx"])
    given = parser.parse_args()
    recognizer, utterances = Recognizer.load(given.model), read_manifest(given.manifest)[: given.limit]
    reference = ReferenceTimes(align=given.align)
    reference.read(given.manifest, utterances)
    measure(recognizer, given.manifest, utterances[:2], given.normalise, reference)
    rounds = [measure(recognizer, given.manifest, utterances, given.normalise, reference) for _ in range(given.rounds)]
    alone, both = (sum(map(min, zip(*times, strict=True))) for times in zip(*rounds, strict=True))
    print(f"recognising {alone:.2f} s, evaluating {both:.2f} s, ratio {both / alone:.3f}")
    print("all rounds:", ", ".join(f"{sum(b) / sum(a):.3f}" for a, b in rounds))


if __name__ == "__main__":
    main()
