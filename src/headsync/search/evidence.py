"""What CTC says about where tokens are: an output step needs evidence before it may be taken.

A live microphone has seconds of silence before and between words. With a look-ahead of M frames alone, a step would be
forced there, on nothing. So a step waits until CTC has seen one token more than have been written. And in a room full
of voices something now and then sounds a little like a word: before an utterance opens, a token must be heard clearly,
or several that are fainter, one after the other: log odds of independent observations add up. All of them count then,
if no pause lies between.

Evidence is a function of frames alone, whenever they arrive, so that it is the same for every cutting of the audio.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from headsync.audio import FloatArray
from headsync.config import DecodingConfig

TOGETHER_FRAMES = 25  # tokens that begin within a second add up
SUREST = 1.0 - 1e-6  # nothing is surer than that


class Evidence(NamedTuple):
    """The greedy CTC reading so far."""

    spikes: tuple[int, ...] = ()  # frames at which CTC begins a token
    tokens: tuple[int, ...] = ()  # which tokens these are
    label: int = 0  # of the last frame; 0 is blank
    last: int = -1  # last frame that was not blank
    frames: int = 0
    clear: bool = False  # whether the tokens were heard clearly
    peaks: tuple[float, ...] = ()  # until then: the highest probability of each that it is one

    def add(self, log_ctc_V: FloatArray, config: DecodingConfig) -> Evidence:
        """One more frame; it speaks of a token where all tokens together have at least the probability `evidence`.

        Tokens are clear when the log odds of those within a second, above those of `evidence`, come to what one has at
        the probability `onset`. Until then they are forgotten as an utterance ends: after so much silence, or when
        they have become too old.
        """
        probability = -np.expm1(min(0.0, float(log_ctc_V[0])))
        label = 1 + int(log_ctc_V[1:].argmax()) if probability >= config.evidence else 0
        begins = label not in (0, self.label)
        kept = 0 if self.clear else self._fresh(config)
        spikes = (*self.spikes[kept:], self.frames) if begins else self.spikes[kept:]
        peaks = () if self.clear else _peaks(self.peaks[kept:], probability if label else 0.0, begins)
        together = peaks[bisect_left(spikes, self.frames - TOGETHER_FRAMES) :]
        enough = _gain([config.onset], config.evidence)
        clear = self.clear or bool(together and _gain(together, config.evidence) >= enough)
        return Evidence(
            spikes=spikes,
            tokens=(*self.tokens[kept:], label) if begins else self.tokens[kept:],
            label=label,
            last=self.frames if label else self.last,
            frames=self.frames + 1,
            clear=clear,
            peaks=() if clear else peaks,
        )

    def _fresh(self, config: DecodingConfig) -> int:
        """The first of the faint tokens that still counts."""
        if self.frames - 1 - self.last >= config.trailing_frames:
            return len(self.spikes)
        return bisect_left(self.spikes, self.frames - config.longest_frames)

    def after(self, written: int, searched: int) -> int | None:
        """The first spike for one token more than were written that was not searched in vain; None: not yet."""
        first = max(written, bisect_left(self.spikes, searched))
        return self.spikes[first] if first < len(self.spikes) else None

    def forget(self, frames: int) -> Evidence:
        """The same reading with its first frames, which speak of nothing, left out."""
        assert not self.spikes or self.spikes[0] >= frames
        moved = tuple(spike - frames for spike in self.spikes)
        return self._replace(spikes=moved, last=max(-1, self.last - frames), frames=self.frames - frames)


NO_EVIDENCE = Evidence()


def _peaks(before: tuple[float, ...], probability: float, begins: bool) -> tuple[float, ...]:
    """Of every token, with one frame more, which begins a token or goes on with the last one."""
    if begins:
        return (*before, probability)
    return (*before[:-1], max(before[-1], probability)) if before else ()


def _gain(probabilities: Iterable[float], least: float) -> float:
    """How much the log odds of all of them are above those of the least that counts."""
    return sum(_log_odds(probability) - _log_odds(least) for probability in probabilities)


def _log_odds(probability: float) -> float:
    bounded = min(max(probability, 1.0 - SUREST), SUREST)
    return math.log(bounded / (1.0 - bounded))
