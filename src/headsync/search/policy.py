"""When an output step may be taken, and how far it may look: the limit that online attention is given.

Algorithm 1 lets step i look at t_{i-1} + M frames. Here the same look-ahead is counted from the evidence for the step,
where that lies further on: silence moves the base forward, and nothing is written about it.
"""

from __future__ import annotations

from collections.abc import Callable

from headsync.search.evidence import Evidence

Policy = Callable[[int, int, int, Evidence, int], int | None]


def lookahead(written: int, t: int, searched: int, evidence: Evidence, m: int) -> int | None:
    """The first frame that a step may not look at, or None where there is no evidence for it yet.

    `written` tokens so far, the last one decided at frame `t`; up to frame `searched` there is nothing more.
    """
    for spike in evidence.spikes[written:]:
        if spike >= searched:
            return max(t, spike) + m
    return None


def whole_utterance(written: int, t: int, searched: int, evidence: Evidence, m: int) -> int | None:
    """Offline attention looks at everything, so it has to wait for the end."""
    return None


POLICIES: dict[str, Policy] = {"softmax": whole_utterance, "dacs": lookahead, "hs-dacs": lookahead}
