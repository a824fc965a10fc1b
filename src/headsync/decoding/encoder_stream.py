"""Feature frames to encoder blocks: collects the frames of the next window [centre | right], and encodes it.

A stream advances in blocks. A window is encoded when its right context has arrived, or the stream has ended: one at a
time, with the same shapes for any chunking of the audio. An encoder with full context has one window, the whole stream,
so it emits nothing before the end.

Shapes: T frames, F features, E width, V classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headsync.config import EncoderConfig
from headsync.engine import Engine, Memory, State
from headsync.frontend.audio import SAMPLE_RATE, FloatArray
from headsync.frontend.features import Features, Statistics, normalise
from headsync.frontend.waveform import AnyFeatures

ENERGIES = Features()


class Block(NamedTuple):
    """The centre frames of one window."""

    log_ctc_TV: FloatArray
    memory: Memory
    time_seconds: float  # the audio that it required; inf: the end of the stream

    def without_first(self, count: int) -> Block:
        memory = Memory(*(part[:, :, :, count:] for part in self.memory))
        return self._replace(log_ctc_TV=self.log_ctc_TV[count:], memory=memory)


@dataclass(frozen=True)
class EncoderStream:
    """The encoder state of a stream, as a value."""

    engine: Engine
    config: EncoderConfig
    statistics: Statistics
    features_TF: FloatArray  # not yet embedded, or needed again by the next embedded frame
    ahead_TE: FloatArray  # embedded frames of the right context: the next window begins with them
    front_state: State  # of embedding
    state: State
    features: AnyFeatures = ENERGIES
    embedded: int = 0  # frames so far

    @classmethod
    def start(
        cls, engine: Engine, config: EncoderConfig, statistics: Statistics, features: AnyFeatures = ENERGIES
    ) -> EncoderStream:
        features_TF = np.zeros((0, len(statistics.mean)), np.float32)
        ahead_TE = np.zeros((0, 0), np.float32)
        front_state, state = engine.start_front(1), engine.start_encoder(1)
        return cls(engine, config, statistics, features_TF, ahead_TE, front_state, state, features)

    def push(self, features_TF: FloatArray) -> EncoderStream:
        """The stream with more features; `next_block` encodes them."""
        return replace(self, features_TF=np.concatenate([self.features_TF, features_TF]))

    def next_block(self, final: bool) -> tuple[Block | None, EncoderStream]:
        """The next block if it is complete; with `final`, also the last ones, without their right context."""
        now, missing = self, self._missing
        if missing is not None and len(now.features_TF) >= now.features.rate.needed(missing):
            now = now._embed(missing)
            return now._encode(now._needed_samples(now.embedded) / SAMPLE_RATE)
        if final:
            now = now._embed(now.features.rate.embedded(len(now.features_TF)))
        return now._encode(math.inf) if final and len(now.ahead_TE) else (None, now)

    def without_left_context(self) -> EncoderStream:
        """The same stream; its next block has no left context."""
        return replace(self, state=self.engine.start_encoder(1))

    def is_due(self, samples: int) -> bool:
        """Whether the next window can be encoded after this many samples."""
        return self._missing is not None and samples >= self._needed_samples(self.embedded + self._missing)

    @property
    def _missing(self) -> int | None:
        """Embedded frames missing from the next window; None: all frames until the end."""
        if self.config.mode == "full":
            return None
        return self.config.centre_frames + self.config.right_frames - len(self.ahead_TE)

    def _embed(self, count: int) -> EncoderStream:
        if count == 0:
            return self
        rate = self.features.rate
        features_TF = normalise(self.features_TF[: rate.needed(count)], self.statistics)
        (new_TE,), front_state = self.engine.embed(features_TF[None], self.front_state)
        return replace(
            self,
            features_TF=self.features_TF[rate.stride * count :],
            front_state=front_state,
            ahead_TE=np.concatenate([self.ahead_TE, new_TE]) if len(self.ahead_TE) else new_TE,
            embedded=self.embedded + count,
        )

    def _encode(self, time_seconds: float) -> tuple[Block, EncoderStream]:
        centre, width = self.config.centre_frames, self.config.centre_frames + self.config.right_frames
        if self.config.mode == "full":
            centre = width = len(self.ahead_TE)
        window = np.zeros((1, width, self.ahead_TE.shape[1]), self.ahead_TE.dtype)
        length = len(self.ahead_TE[:width])
        window[0, :length] = self.ahead_TE[:width]
        encoded = self.engine.encode(window, np.array([length]), self.state, centre)
        rest = replace(self, ahead_TE=self.ahead_TE[centre:], state=encoded.state)
        frames = min(centre, length)
        memory = Memory(*(part[:, :, :, :frames] for part in encoded.memory))
        return Block(encoded.log_ctc_BTV[0, :frames], memory, time_seconds), rest

    def _needed_samples(self, embedded: int) -> int:
        return self.features.rate.needed_samples(embedded) + self.features.delay_samples
