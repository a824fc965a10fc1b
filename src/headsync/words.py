"""When words were said: from the CTC spikes of their tokens.

CTC spikes where it becomes sure of a token, which with some right context is near its beginning. So a token lasts from
just before its spike to the next token, or a while after its spike if nothing follows soon. Both are settings of the
model (`decoding.token_lead_frames`, `decoding.token_frames`), because they depend on what its tokens are.
"""

from __future__ import annotations

from headsync.config import DecodingConfig
from headsync.events import Word
from headsync.framing import ENCODER_FRAME_SECONDS
from headsync.measure.confidence import calibrated
from headsync.search.beam import Hypothesis
from headsync.search.evidence import Evidence
from headsync.tokens import Vocabulary


def timed_words(
    vocabulary: Vocabulary, hypothesis: Hypothesis, evidence: Evidence, first_frame: int, config: DecodingConfig
) -> tuple[Word, ...]:
    """The words of a hypothesis in seconds of the stream; in order, none overlapping.

    `first_frame` is where in the stream the utterance begins.
    """
    spikes = token_frames(hypothesis, evidence)
    spans = vocabulary.words(hypothesis.tokens)
    starts = [max(0, spikes[span.first] - config.token_lead_frames) for span in spans]
    words, before = [], 0
    for n, span in enumerate(spans):
        start = max(before, starts[n])
        following = starts[n + 1] if n + 1 < len(spans) else evidence.frames
        end = max(start + 1, min(spikes[span.end - 1] + config.token_frames, following))
        sure = min(hypothesis.confidences[span.first : span.end], default=1.0)  # a word is as sure as its least token
        confidence = calibrated(sure, config.confidence_scale, config.confidence_offset)
        words.append(Word(span.text, _seconds(first_frame + start), _seconds(first_frame + end), confidence))
        before = end
    return tuple(words)


def token_frames(hypothesis: Hypothesis, evidence: Evidence) -> list[int]:
    """A frame for every token, in order: the next spike of the same token, or where it was decided if there is none."""
    frames: list[int] = []
    first = 0
    for token, halt in zip(hypothesis.tokens, hypothesis.halts, strict=True):
        matching = (n for n in range(first, len(evidence.spikes)) if evidence.tokens[n] == token)
        found = next((n for n in matching if evidence.spikes[n] < halt), None)
        if found is None:
            frames.append(max(frames[-1] if frames else 0, halt - 1))
        else:
            frames.append(max(frames[-1] if frames else 0, evidence.spikes[found]))
            first = found + 1
    return frames


def _seconds(frame: int) -> float:
    return round(frame * ENCODER_FRAME_SECONDS, 3)
