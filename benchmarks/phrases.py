"""The cost of a phrase list: of its compilation, and of each label step of a beam.

    python benchmarks/phrases.py [--phrases 1000] [--tokens 6000] [--beam 5] [--steps 300]

The vocabulary is synthetic: all letters, and the most frequent pieces of random words, within and at the beginning of
words. The hypotheses of the beam emit random tokens that the list allows. A step is the work that the list adds to the
search: the scores of all tokens after each hypothesis, and the states of the next beam. With "[unk]", one token in five
is other speech.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from headsync.decoding.build import build_phrases
from headsync.decoding.phrases import START, Phrases
from headsync.text.vocabulary import Vocabulary

CONSONANTS, VOWELS = "bcdfghklmnprstvwz", "aeiou"


def random_words(rng: np.random.Generator, count: int) -> list[str]:
    syllables = [
        [str(rng.choice([*CONSONANTS])) + str(rng.choice([*VOWELS])) for _ in range(n)]
        for n in rng.integers(1, 5, count)
    ]
    return ["".join(word) for word in syllables]


def vocabulary_of(words: list[str], size: int) -> Vocabulary:
    """All letters and the most frequent pieces."""
    pieces = Counter(
        ("▁" + word)[first:end]
        for word in words
        for first in range(len(word) + 1)
        for end in range(first + 2, min(first + 9, len(word) + 1) + 1)
    )
    letters = ["▁", *CONSONANTS, *VOWELS]
    found = [piece for piece, _ in pieces.most_common(size) if piece not in letters]
    return Vocabulary("bpe", tuple([*letters, *found][:size]))


def walk(phrases: Phrases, beam: int, steps: int, rng: np.random.Generator) -> list[float]:
    """The seconds of each step."""
    states, seconds = [START] * beam, []
    for _ in range(steps):
        began = time.perf_counter()
        score_BV = phrases.scores(states)
        phrases.lent(states)
        took = time.perf_counter() - began
        tokens = [_drawn(score_V[:-1], rng) for score_V in score_BV]
        began = time.perf_counter()
        states = [phrases.after(state, token) for state, token in zip(states, tokens, strict=True)]
        seconds.append(took + time.perf_counter() - began)
    return seconds


def _drawn(score_V: np.ndarray, rng: np.random.Generator) -> int:
    other = rng.random() < 0.2
    possible = np.flatnonzero(score_V > (-np.inf if other else score_V.max() - 1e-9))
    return int(rng.choice(possible))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("phrases", 1000), ("tokens", 6000), ("beam", 5), ("steps", 300)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    words = random_words(rng, 20_000)
    vocabulary = vocabulary_of(words, given.tokens)
    phrases = [" ".join(rng.choice(words, rng.integers(1, 5))) for _ in range(given.phrases)]
    print(f"{len(vocabulary.tokens)} tokens, {len(phrases)} phrases, beam {given.beam}, {given.steps} steps")
    for name, chosen in (("phrases", phrases), ("with [unk]", [*phrases, "[unk]"])):
        began = time.perf_counter()
        built = build_phrases(chosen, vocabulary)
        assert built is not None
        compiled = time.perf_counter() - began
        first = 1000 * np.array(walk(built, given.beam, given.steps, np.random.default_rng(1)))
        again = 1000 * np.array(walk(built, given.beam, given.steps, np.random.default_rng(1)))
        print(
            f"{name}: compiled in {compiled:.2f} s; a step takes {np.median(again):.2f} ms (median), "
            f"with new tables {np.median(first):.2f} ms (median), {first.max():.1f} ms (most)"
        )


if __name__ == "__main__":
    main()
