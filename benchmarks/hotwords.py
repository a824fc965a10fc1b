"""The effect of hotwords on real speech: how many more of the boosted words are recognised, and the other errors.

    python benchmarks/hotwords.py MANIFEST [--model NAME_OR_FOLDER] [--boost 2] [--limit 100] PHRASE ...

Each phrase is boosted alone; errors are counted over the whole manifest. The last column counts the recordings whose
text has changed although the phrase occurs neither before nor after.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jiwer

from headsync import Recognizer
from headsync.corpora.manifest import Utterance, read_manifest
from headsync.frontend.audio import read_audio


def results(recognizer: Recognizer, utterances: list[Utterance]) -> list[tuple[str, str]]:
    """References and hypotheses."""
    pairs = []
    for utterance in utterances:
        finals = recognizer.transcribe(*read_audio(utterance.audio))
        pairs.append((utterance.text, " ".join(final.text for final in finals)))
    return pairs


def counted(pairs: list[tuple[str, str]], phrase: str) -> tuple[int, int, int, int]:
    """Occurrences, hits and insertions of a phrase, and errors in all other words."""
    words, said, found, written, other = phrase.split(), 0, 0, 0, 0
    for reference, hypothesis in pairs:
        result = jiwer.process_words(reference, hypothesis)
        left, right = result.references[0], result.hypotheses[0]
        said, written = said + times(words, left), written + times(words, right)
        for chunk in result.alignments[0]:
            before = left[chunk.ref_start_idx : chunk.ref_end_idx]
            if chunk.type == "equal":
                found += times(words, before)
            else:
                after = right[chunk.hyp_start_idx : chunk.hyp_end_idx]
                other += sum(token not in words for token in (before or after))
    return said, found, written - found, other


def times(words: list[str], text: list[str]) -> int:
    return sum(text[first : first + len(words)] == words for first in range(len(text)))


def changed(plain: list[tuple[str, str]], boosted: list[tuple[str, str]], phrase: str) -> int:
    """Recordings whose text has changed, although the phrase is in neither text."""
    texts = [(before.split(), after.split()) for (_, before), (_, after) in zip(plain, boosted, strict=True)]
    return sum(one != other and not times(phrase.split(), one) + times(phrase.split(), other) for one, other in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("phrases", nargs="+", metavar="PHRASE")
    parser.add_argument("--model")
    parser.add_argument("--boost", type=float, default=2.0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--beam", type=int, default=4)
    given = parser.parse_args()
    utterances = [one for one in read_manifest(given.manifest) if one.text][: given.limit]
    plain = results(Recognizer.load(given.model, beam=given.beam), utterances)
    columns = ("phrase", "said", "found", "found, boosted", "invented", "invented, boosted", "errors in other words")
    print("| " + " | ".join((*columns, "boosted", "other texts changed")) + " |\n|" + "---|" * (len(columns) + 2))
    for phrase in given.phrases:
        boosted = results(Recognizer.load(given.model, beam=given.beam, hotwords=[(phrase, given.boost)]), utterances)
        said, found, invented, other = counted(plain, phrase)
        _, found_now, invented_now, other_now = counted(boosted, phrase)
        figures = (said, found, found_now, invented, invented_now, other, other_now, changed(plain, boosted, phrase))
        print(f"| {phrase} | " + " | ".join(map(str, figures)) + " |", flush=True)


if __name__ == "__main__":
    main()
