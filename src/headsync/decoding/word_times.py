"""Times of words, from the CTC spikes of their tokens.

With some right context CTC spikes near the beginning of a token. So a token lasts from `LEAD_FRAMES`
before its spike to the next token, but at most until `decoding.token_frames` after its spike.
"""

from __future__ import annotations

from collections.abc import Sequence

from headsync.config import DecodingConfig
from headsync.decoding.confidence import calibrated
from headsync.decoding.hypothesis import Hypothesis, SpeechFrames
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.events import Word
from headsync.frontend.frame_rate import FrameRate
from headsync.text.vocabulary import Span

LEAD_FRAMES = 1  # how long before its CTC spike a token begins


def timed_words(
    spans: Sequence[Span],
    hypothesis: Hypothesis,
    speech: SpeechFrames,
    first_frame: int,
    config: DecodingConfig,
    rate: FrameRate,
) -> tuple[Word, ...]:
    """The words of a hypothesis in seconds of the stream, where the utterance begins at `first_frame`; none overlap."""
    spikes = token_frames(hypothesis, speech.spikes)
    starts = [max(0, spikes[span.first] - LEAD_FRAMES) for span in spans]
    words, before = [], 0
    for n, span in enumerate(spans):
        start = max(before, starts[n])
        following = starts[n + 1] if n + 1 < len(spans) else speech.frames
        end = max(start + 1, min(spikes[span.end - 1] + config.token_frames, following))
        sure = min(hypothesis.confidences[span.first : span.end], default=1.0)  # its least confident token
        confidence = calibrated(sure, config.confidence_scale, config.confidence_offset)
        start_seconds, end_seconds = (round((first_frame + frame) * rate.seconds, 3) for frame in (start, end))
        words.append(Word(span.text, start_seconds, end_seconds, confidence))
        before = end
    return tuple(words)


def token_frames(hypothesis: Hypothesis, spikes: CtcSpikes) -> list[int]:
    """A frame for every token, in order: the next spike of the same token, or its halt if there is none."""
    frames: list[int] = []
    first = 0
    for token, halt in zip(hypothesis.tokens, hypothesis.halts, strict=True):
        matching = (n for n in range(first, len(spikes.frames)) if spikes.tokens[n] == token)
        found = next((n for n in matching if spikes.frames[n] < halt), None)
        frames.append(max(frames[-1] if frames else 0, halt - 1 if found is None else spikes.frames[found]))
        first = first if found is None else found + 1
    return frames
