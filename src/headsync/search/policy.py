"""When an output step may be taken, and how far it may look: the limit that online attention is given.

Algorithm 1 lets step i look at t_{i-1} + M frames. Here the same look-ahead is counted from the evidence for the step,
where that lies further on: silence moves the base forward, and nothing is written about it.

A policy says the first frame that a step may not look at, or None where there is no evidence for it yet. It is given
how many tokens are `written`, the frame `t` at which the last one was decided, the frame up to which the step has been
`searched` in vain, and `ahead`, how many frames it may look past its base. At the end of speech None means all of it.
"""

from __future__ import annotations

from collections.abc import Callable

from headsync.config import DecoderConfig, DecodingConfig
from headsync.engine import NO_LIMIT
from headsync.search.evidence import Evidence

Policy = Callable[[int, int, int, Evidence, int], int | None]


def lookahead(written: int, t: int, searched: int, evidence: Evidence, ahead: int) -> int | None:
    """Accumulation: M frames past the evidence or past the last halt."""
    spike = evidence.after(written, searched)
    return None if spike is None else max(t, spike) + ahead


def unlimited(written: int, t: int, searched: int, evidence: Evidence, ahead: int) -> int | None:
    """Attention that fires by itself looks as far as it has to, once there is evidence."""
    return None if evidence.after(written, searched) is None else NO_LIMIT


def trigger(written: int, t: int, searched: int, evidence: Evidence, ahead: int) -> int | None:
    """Triggered attention: up to the frame at which CTC emits the token, and some frames past it."""
    spike = evidence.after(written, searched)
    return None if spike is None else spike + ahead + 1


def whole_blocks(written: int, t: int, searched: int, evidence: Evidence, ahead: int) -> int | None:
    """Blockwise: all that has arrived. Of all policies, the only one to which it matters how frames arrive."""
    return None if evidence.after(written, searched) is None else evidence.frames


def whole_utterance(written: int, t: int, searched: int, evidence: Evidence, ahead: int) -> int | None:
    """Offline attention looks at everything, so it has to wait for the end."""
    return None


POLICIES: dict[str, Policy] = {
    "softmax": whole_utterance,
    "acs": lookahead,
    "dacs": lookahead,
    "hs-dacs": lookahead,
    "hma": unlimited,
    "mocha": unlimited,
    "mma-mocha": unlimited,
    "mta": unlimited,
    "cif": unlimited,
    "triggered": trigger,
    "bs-dec": whole_blocks,
}


def frames_ahead(decoder: DecoderConfig, decoding: DecodingConfig) -> int:
    """The `ahead` of a model: its trigger's, which it was trained with, or M, which is of decoding alone."""
    return decoder.trigger_frames if decoder.attention == "triggered" else decoding.lookahead_frames
