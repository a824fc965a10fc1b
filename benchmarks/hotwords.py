"""What hotwords do on real speech: how many more of the boosted words are found, and what happens to the others.

    python benchmarks/hotwords.py MANIFEST [--model NAME_OR_FOLDER] [--boost 2] [--limit 100] WORD ...

Each word is boosted by itself; the errors are those of the whole manifest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jiwer

from headsync import Recognizer
from headsync.audio import read_audio
from headsync.data.manifest import Utterance, read_manifest


def heard(recognizer: Recognizer, utterances: list[Utterance]) -> list[tuple[str, str]]:
    """References and what was recognised."""
    pairs = []
    for utterance in utterances:
        finals = recognizer.transcribe(*read_audio(utterance.audio))
        pairs.append((utterance.text, " ".join(final.text for final in finals)))
    return pairs


def counted(pairs: list[tuple[str, str]], word: str) -> tuple[int, int, int, int]:
    """Of a word: how often it was said, found, and written where it was not said; and the errors in all other words."""
    said = found = invented = other = 0
    for reference, hypothesis in pairs:
        result = jiwer.process_words(reference, hypothesis)
        left, right = result.references[0], result.hypotheses[0]
        for chunk in result.alignments[0]:
            before = left[chunk.ref_start_idx : chunk.ref_end_idx]
            after = right[chunk.hyp_start_idx : chunk.hyp_end_idx]
            said += before.count(word)
            if chunk.type == "equal":
                found += before.count(word)
            else:
                invented += after.count(word)
                other += sum(token != word for token in (before or after))
    return said, found, invented, other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("words", nargs="+", metavar="WORD")
    parser.add_argument("--model")
    parser.add_argument("--boost", type=float, default=2.0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--beam", type=int, default=4)
    given = parser.parse_args()
    utterances = [one for one in read_manifest(given.manifest) if one.text][: given.limit]
    plain = heard(Recognizer.load(given.model, beam=given.beam), utterances)
    print("| word | said | found | found, boosted | invented | invented, boosted | errors in other words | boosted |")
    print("|---|---|---|---|---|---|---|---|")
    for word in given.words:
        boosted = heard(Recognizer.load(given.model, beam=given.beam, hotwords=[(word, given.boost)]), utterances)
        said, found, invented, other = counted(plain, word)
        _, found_now, invented_now, other_now = counted(boosted, word)
        print(
            f"| {word} | {said} | {found} | {found_now} | {invented} | {invented_now} | {other} | {other_now} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
