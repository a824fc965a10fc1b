"""When words were said: from the CTC spikes of their tokens.

A spike tells where CTC was sure of a token, not where the word began. A word therefore runs from the middle between its
spike and the one before, at most HALF_FRAMES before its spike, to its spike and a little more.
"""

from __future__ import annotations

from headsync.events import Word
from headsync.framing import ENCODER_FRAME_SECONDS
from headsync.search.beam import Hypothesis
from headsync.search.evidence import Evidence
from headsync.tokens import Vocabulary

LEAD_FRAMES = 8
TAIL_FRAMES = 2


def timed_words(vocabulary: Vocabulary, hypothesis: Hypothesis, evidence: Evidence, offset: float) -> tuple[Word, ...]:
    """The words of a hypothesis in seconds of the stream; in order, none overlapping."""
    spikes = token_frames(hypothesis, evidence)
    words, before = [], 0
    for span in vocabulary.words(hypothesis.tokens):
        start = max(before, spikes[span.first] - LEAD_FRAMES)
        end = max(start + 1, spikes[span.end - 1] + TAIL_FRAMES)
        words.append(Word(span.text, _seconds(start, offset), _seconds(end, offset)))
        before = end
    return tuple(words)


def token_frames(hypothesis: Hypothesis, evidence: Evidence) -> list[int]:
    """A frame for every token: the spike of the same token nearest to where it was decided, in order."""
    frames: list[int] = []
    first = 0
    for token, halt in zip(hypothesis.tokens, hypothesis.halts, strict=True):
        matching = [n for n in range(first, len(evidence.spikes)) if evidence.tokens[n] == token]
        found = next((n for n in matching if evidence.spikes[n] < halt), None)
        if found is None:
            frames.append(max(frames[-1] if frames else 0, halt - 1))
        else:
            frames.append(evidence.spikes[found])
            first = found + 1
    return frames


def _seconds(frame: int, offset: float) -> float:
    return round(offset + frame * ENCODER_FRAME_SECONDS, 3)
