"""What CTC says about where tokens are: an output step needs evidence before it may be taken.

A live microphone has seconds of silence before and between words. With a look-ahead of M frames alone, a step would be
forced there, on nothing. So a step waits until CTC has seen one token more than have been written. And in a room full
of voices something now and then sounds a little like a word: before an utterance opens, a token must be heard clearly,
or several that are fainter, one after the other: log odds of independent observations add up. All of them count then,
if no pause lies between. And beside a word that is loud, one that is much softer is said by somebody further away.

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
FADING_DB = 3.0  # in a frame at most: a token is as loud as the sound that it follows
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
    levels: tuple[float, ...] = ()  # and how loud it was, in decibels
    near: float = -math.inf  # how loud it is now
    loudest: float = -math.inf  # and was at any token

    def add(self, log_ctc_V: FloatArray, config: DecodingConfig, level: float = 0.0) -> Evidence:
        """One more frame; it speaks of a token where all tokens together have at least the probability `evidence`.

        Tokens are clear when the log odds of those within a second, above those of `evidence`, come to what one has at
        the probability `onset`. Until then they are forgotten as an utterance ends: after so much silence, or when
        they have become too old. What is more than `background_db` softer than the loudest token counts as silence,
        and so do tokens before it that are not yet clear.
        """
        near = max(level, self.near - FADING_DB)
        probability = -np.expm1(min(0.0, float(log_ctc_V[0])))
        speaks = probability >= config.evidence and near >= self.loudest - config.background
        label = 1 + int(log_ctc_V[1:].argmax()) if speaks else 0
        begins = label not in (0, self.label)
        loudest = max(self.loudest, near) if label else self.loudest
        kept = self if self.clear else self._fresh(config, loudest)
        spikes = (*kept.spikes, self.frames) if begins else kept.spikes
        peaks = () if self.clear else _peaks(kept.peaks, probability if label else 0.0, begins)
        together = peaks[bisect_left(spikes, self.frames - TOGETHER_FRAMES) :]
        enough = _gain([config.onset], config.evidence)
        clear = self.clear or bool(together and _gain(together, config.evidence) >= enough)
        return Evidence(
            spikes=spikes,
            tokens=(*kept.tokens, label) if begins else kept.tokens,
            label=label,
            last=self.frames if label else self.last,
            frames=self.frames + 1,
            clear=clear,
            peaks=() if clear else peaks,
            levels=() if clear else _peaks(kept.levels, near if label else -math.inf, begins),
            near=near,
            loudest=loudest,
        )

    def is_background(self, config: DecodingConfig) -> bool:
        """Whether the frame added last is too soft to be of the one who speaks."""
        return self.near < self.loudest - config.background

    def _fresh(self, config: DecodingConfig, loudest: float) -> Evidence:
        """With those of the faint tokens that still count."""
        oldest = self.frames - config.longest_frames
        if self.frames - 1 - self.last >= config.trailing_frames:
            oldest = self.frames
        softest = loudest - config.background
        kept = [n for n, spike in enumerate(self.spikes) if spike >= oldest and self.levels[n] >= softest]
        if len(kept) == len(self.spikes):
            return self
        return self._replace(
            spikes=tuple(self.spikes[n] for n in kept),
            tokens=tuple(self.tokens[n] for n in kept),
            peaks=tuple(self.peaks[n] for n in kept),
            levels=tuple(self.levels[n] for n in kept),
        )

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
