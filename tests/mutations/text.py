"""Faults in vocabularies, BPE and output formats."""

from __future__ import annotations

from mutations.mutation import Mutation

VOCABULARY = ("tests/text/test_vocabulary.py",)
BPE = ("tests/text/test_bpe.py",)
SUBTITLES = ("tests/text/test_subtitles.py",)

MUTATIONS: list[Mutation] = [
    Mutation(
        "the sentence end is a text token",
        "text/vocabulary.py",
        "return None if token_id in (self.blank, self.end) else self.tokens[token_id - 1]",
        "return None if token_id == self.blank else self.tokens[(token_id - 1) % len(self.tokens)]",
        VOCABULARY,
    ),
    Mutation(
        "a word that may still grow is complete",
        "text/vocabulary.py",
        "if complete and joins:",
        "if False:",
        VOCABULARY,
    ),
    Mutation(
        "an unknown word is not mapped to <unk>",
        "text/vocabulary.py",
        "if UNKNOWN in self._ids:",
        "if False:",
        VOCABULARY,
    ),
    Mutation(
        "BPE merges the latest subword first",
        "text/bpe.py",
        "best = min((rank for rank in joined if rank is not None), default=None)",
        "best = max((rank for rank in joined if rank is not None), default=None)",
        (*BPE, *VOCABULARY),
    ),
    Mutation(
        "BPE merges the rightmost pair first",
        "text/bpe.py",
        "place = joined.index(best)",
        "place = len(joined) - 1 - joined[::-1].index(best)",
        (*BPE, *VOCABULARY),
    ),
    Mutation(
        "the clock of subtitles is truncated instead of rounded",
        "text/subtitles.py",
        "milliseconds = round(seconds * 1000)",
        "milliseconds = int(seconds * 1000)",
        SUBTITLES,
    ),
    Mutation(
        "cues run across pauses",
        "text/subtitles.py",
        "return characters <= LINE_CHARACTERS and pause_seconds < PAUSE_SECONDS and cue_seconds <= CUE_SECONDS",
        "return characters <= LINE_CHARACTERS and cue_seconds <= CUE_SECONDS",
        SUBTITLES,
    ),
]
