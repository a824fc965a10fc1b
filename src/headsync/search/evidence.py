"""What CTC says about where tokens are: an output step needs evidence before it may be taken.

A live microphone has seconds of silence before and between words. With a look-ahead of M frames alone, a step would be
forced there, on nothing. So a step waits until CTC has seen one token more than have been written. And in a room full
of voices something now and then sounds a little like a word: before an utterance opens, a token must be heard clearly,
or two within a second, for what only sounds like a word mostly does so alone. Fainter ones before it then count as
well, if no pause lies between. More is asked of a sound that does not stand out from the room.

Evidence is a function of frames alone, whenever they arrive, so that it is the same for every cutting of the audio.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from headsync.audio import FloatArray
from headsync.config import DecodingConfig

PAIR_FRAMES = 25  # a second, the longest from one of two tokens that open an utterance to the other


class Evidence(NamedTuple):
    """The greedy CTC reading so far."""

    spikes: tuple[int, ...] = ()  # frames at which CTC begins a token
    tokens: tuple[int, ...] = ()  # which tokens these are
    label: int = 0  # of the last frame; 0 is blank
    last: int = -1  # last frame that was not blank
    frames: int = 0
    clear: bool = False  # whether one of the tokens was heard clearly, or two of them well enough
    first: int = -1  # where the last token began that would open an utterance together with the next

    def add(self, log_ctc_V: FloatArray, config: DecodingConfig, stands_out: bool = True) -> Evidence:
        """One more frame; it speaks of a token where all tokens together have at least the probability `evidence`.

        With the probability `onset` it does so clearly; `onset_pair` is enough for two tokens. Of a sound that does not
        stand out `onset_behind` is asked, or `onset` of two. Until then, tokens are forgotten as an utterance ends:
        after so much silence, or when they have become too old.
        """
        probability = -np.expm1(min(0.0, float(log_ctc_V[0])))
        label = 1 + int(log_ctc_V[1:].argmax()) if probability >= config.evidence else 0
        begins = label not in (0, self.label)
        kept = 0 if self.clear else self._fresh(config)
        spikes = (*self.spikes[kept:], self.frames) if begins else self.spikes[kept:]
        speaks = bool(spikes) and label != 0
        onset, onset_pair = config.onset, config.onset_pair
        if not stands_out:
            onset, onset_pair = max(onset, config.onset_behind), max(onset, onset_pair)
        one_of_two = speaks and probability >= onset_pair
        pair = one_of_two and spikes[0] <= self.first < spikes[-1] <= self.first + PAIR_FRAMES
        return Evidence(
            spikes=spikes,
            tokens=(*self.tokens[kept:], label) if begins else self.tokens[kept:],
            label=label,
            last=self.frames if label else self.last,
            frames=self.frames + 1,
            clear=self.clear or pair or (speaks and probability >= onset),
            first=spikes[-1] if one_of_two else self.first,
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
        last, first = max(-1, self.last - frames), max(-1, self.first - frames)
        return self._replace(spikes=moved, last=last, first=first, frames=self.frames - frames)


NO_EVIDENCE = Evidence()
