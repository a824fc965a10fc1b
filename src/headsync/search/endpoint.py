"""Where utterances begin and end in a stream, by CTC evidence.

An utterance opens a little before the first frame that speaks of a token, once one does so clearly, and closes after a
stretch of silence, so that minutes of silence cost nothing and are never searched. Both follow from frames alone, not
from when they arrived. The silence between two utterances is shared out: CTC speaks of a word only when much of it has
been said, so that the next one may have begun when the stretch is over.
"""

from __future__ import annotations

from headsync.config import DecodingConfig
from headsync.events import Reason
from headsync.search.evidence import Evidence

SHORT_PAUSE_FRAMES = 5  # enough to end an utterance that has become too long


def idle(evidence: Evidence) -> bool:
    """Nothing has been said yet."""
    return not evidence.clear


def ended(evidence: Evidence, config: DecodingConfig) -> Reason | None:
    """Why the frame added last closes the utterance, if it does."""
    if idle(evidence):
        return None
    silence = _silence(evidence)
    length = evidence.frames - max(0, evidence.spikes[0] - config.lead_frames)  # what is before will be forgotten
    if length >= 2 * config.longest_frames:
        return "length"
    if length >= config.longest_frames and silence >= SHORT_PAUSE_FRAMES:
        return "length"
    return "pause" if silence >= config.trailing_frames else None


def belong(evidence: Evidence, config: DecodingConfig) -> int:
    """How many frames an utterance has that the frame added last closes: those up to the middle of the silence."""
    return evidence.frames - min(_silence(evidence) // 2, most_left(config))


def most_left(config: DecodingConfig) -> int:
    """How many frames may be left over for the next utterance, which takes no more than its lead."""
    return min(config.trailing_frames // 2, config.lead_frames)


def _silence(evidence: Evidence) -> int:
    return evidence.frames - 1 - evidence.last
