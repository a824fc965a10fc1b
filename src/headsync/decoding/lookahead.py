"""The look-ahead limit of an output step, for each kind of online attention.

A limit is the first frame that a step may not attend to. It follows from a base, the frame at which a step starts its
search, and M (`decoding.lookahead_frames`). None means that the step waits for the end of the utterance.

Algorithm 1 has the base t_{i-1}, where the last step halted, and the limit min(t_{i-1} + M, T): a step has M frames
that the last one has not seen. In a live stream (`gated_limit`) the base is a CTC spike.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from importlib.metadata import entry_points

from headsync.decoding.hypothesis import Hypothesis
from headsync.endpointing.ctc_spikes import CtcSpikes
from headsync.engine import NO_LIMIT
from headsync.errors import ConfigError, nearest_name

Limit = Callable[[int, int], int | None]

GROUP = "headsync.limits"
LAG_FRAMES = 4  # a spike longer than this before t_{i-1} belongs to a token that has been written


def lookahead(base: int, ahead: int) -> int | None:
    """Accumulation: M frames from the base."""
    return base + ahead


def unlimited(base: int, ahead: int) -> int | None:
    """Monotonic attention: no limit, the step ends when attention fires."""
    return NO_LIMIT


def whole_utterance(base: int, ahead: int) -> int | None:
    """Offline attention: all frames, so the step waits for the end."""
    return None


LIMITS: dict[str, Limit] = {
    "softmax": whole_utterance,
    "acs": lookahead,
    "dacs": lookahead,
    "hs-dacs": lookahead,
    "hma": unlimited,
    "mocha": unlimited,
    "mma-mocha": unlimited,
    "mta": unlimited,
    "cif": unlimited,
    "triggered": whole_utterance,  # searched frame by frame, without a limit: see `headsync.decoding.triggered`
    "bs-dec": whole_utterance,  # searched block by block, without a limit: see `headsync.decoding.blockwise`
}


def limit_of(attention: str) -> Limit:
    """The limit of a mechanism. Installed packages add limits as entry points of the group `headsync.limits`."""
    if attention in LIMITS:
        return LIMITS[attention]
    for entry in entry_points(group=GROUP, name=attention):
        try:
            found: Limit = entry.load()
        except Exception as error:
            raise ConfigError(f"{entry.value}: the limit of {attention} cannot be imported ({error})") from error
        return found
    raise nearest_name("decoder.attention =", attention, {*LIMITS, *entry_points(group=GROUP).names})


def gated_spike(h: Hypothesis, spikes: CtcSpikes, punctuation: Set[int] = frozenset()) -> int | None:
    """The CTC spike that a step of a live stream waits for; None if there is none yet.

    There must be more spikes than tokens, and the spike must not be in exhausted frames. Without this condition, the
    limit would force tokens out of every silence longer than M. Nor may the spike be long before t_{i-1}: CTC sometimes
    writes a word twice, or in more pieces than the decoder, and a step that sees few new frames may repeat words.
    Punctuation is not counted: it has no sound, so CTC often omits it, and the text would fall behind the speech.
    """
    first = max(h.exhausted, h.t - LAG_FRAMES)
    if not punctuation:
        return spikes.next_after(len(h.tokens), first)
    written = sum(token not in punctuation for token in h.tokens)
    return spikes.without(punctuation).next_after(written, first)


def gated_limit(h: Hypothesis, spike: int, limit: Limit, ahead: int) -> int | None:
    """The limit of a step in a live stream: M frames from its spike, but at least t_{i-1}.

    Unlike Algorithm 1 it does not count from t_{i-1}: with each step that ends at its limit, the text would fall
    further behind the speech.
    """
    found = limit(spike, ahead)
    return None if found is None else max(found, h.t)
