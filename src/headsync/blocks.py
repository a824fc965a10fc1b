"""Feature frames to encoder blocks: collects what the next window [centre | right] needs, and encodes it.

The clock of a stream is the block. A window is encoded when its right context is there (or the stream has ended), one
at a time, with the same shapes for every cutting of the audio. An encoder of full context has one window, the whole
stream, and nothing comes before the end.

Shapes: T frames, F features, E width, V classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headsync.audio import SAMPLE_RATE, FloatArray
from headsync.config import EncoderConfig
from headsync.engine import Encoded, Engine, Memory, State
from headsync.framing import FRAME_SAMPLES, HOP_SAMPLES, NUM_MEL, SUBSAMPLING, embedded_frames, needed_features


class Block(NamedTuple):
    """The centre frames of one window."""

    log_ctc_TV: FloatArray
    memory: Memory
    time_seconds: float  # how much audio had to arrive for it
    level_T: FloatArray | None = None  # how loud its frames are, in decibels; None: nobody knows


@dataclass(frozen=True)
class Blocks:
    """The encoder's side of a stream, as a value."""

    engine: Engine
    config: EncoderConfig
    features_TF: FloatArray  # that no embedded frame has passed by yet
    ahead_TE: FloatArray  # embedded frames of the right context: the next window begins with them
    state: State
    embedded: int = 0  # frames so far
    delay_samples: int = 0  # that must come behind a feature frame before it is there

    @classmethod
    def start(cls, engine: Engine, config: EncoderConfig, columns: int = NUM_MEL, delay_samples: int = 0) -> Blocks:
        none, state = np.zeros((0, columns), np.float32), engine.start_encoder(1)
        return cls(engine, config, none, np.zeros((0, 0), np.float32), state, delay_samples=delay_samples)

    def push(self, features_TF: FloatArray, final: bool) -> tuple[list[Block], Blocks]:
        """All blocks that are complete with these features; with `final`, all there are."""
        blocks: list[Block] = []
        now = replace(self, features_TF=np.concatenate([self.features_TF, features_TF]))
        while (missing := now._missing) is not None and len(now.features_TF) >= needed_features(missing):
            now = now._embed(missing)
            block, now = now._encode()
            blocks.append(block)
        if final:
            now = now._embed(embedded_frames(len(now.features_TF)))
            while len(now.ahead_TE):
                block, now = now._encode()
                blocks.append(block)
        return blocks, now

    def is_due(self, samples: int) -> bool:
        """Whether so many samples, counted from the beginning of the stream, hold all that the next window needs."""
        return self._missing is not None and samples >= self._needed_samples(self.embedded + self._missing)

    @property
    def _missing(self) -> int | None:
        """Embedded frames that the next window still lacks; None: all that there will be."""
        if self.config.mode == "full":
            return None
        return self.config.centre_frames + self.config.right_frames - len(self.ahead_TE)

    def _embed(self, count: int) -> Blocks:
        if count == 0:
            return self
        new = self.engine.embed(self.features_TF[None, : needed_features(count)])[0]
        ahead = np.concatenate([self.ahead_TE, new]) if len(self.ahead_TE) else new
        rest = self.features_TF[SUBSAMPLING * count :]
        return replace(self, features_TF=rest, ahead_TE=ahead, embedded=self.embedded + count)

    def _encode(self) -> tuple[Block, Blocks]:
        centre, width = self.config.centre_frames, self.config.centre_frames + self.config.right_frames
        if self.config.mode == "full":
            centre = width = len(self.ahead_TE)
        window = np.zeros((1, width, self.ahead_TE.shape[1]), self.ahead_TE.dtype)
        length = len(self.ahead_TE[:width])
        window[0, :length] = self.ahead_TE[:width]
        encoded = self.engine.encode(window, np.array([length]), self.state)
        after = replace(self, ahead_TE=self.ahead_TE[centre:], state=encoded.state)
        return _block(encoded, min(centre, length), self._audio_seconds), after

    @property
    def _audio_seconds(self) -> float:
        """Audio that the embedded frames needed, in a stream that goes on."""
        return self._needed_samples(self.embedded) / SAMPLE_RATE

    def _needed_samples(self, embedded: int) -> int:
        return (needed_features(embedded) - 1) * HOP_SAMPLES + FRAME_SAMPLES + self.delay_samples


def _block(encoded: Encoded, frames: int, seconds: float) -> Block:
    keys, values = (part[:, :, :, :frames] for part in encoded.memory)
    return Block(encoded.log_ctc_BTV[0, :frames], Memory(keys, values), seconds)
