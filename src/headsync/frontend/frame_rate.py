"""The ratios of samples, feature frames, encoder frames and seconds; each kind of front end has its own."""

from __future__ import annotations

from dataclasses import dataclass

SAMPLE_RATE = 16_000
NUM_MEL, NUM_PITCH = 80, 3  # columns of log-mel features
FRAME_SAMPLES, HOP_SAMPLES = 400, 160  # a log-mel frame of 25 ms every 10 ms
FOREVER_SECONDS = 1e9  # stands for infinity in a stream: about thirty years


@dataclass(frozen=True)
class FrameRate:
    window: int  # samples of a feature frame
    hop: int  # samples from one feature frame to the next
    stride: int  # feature frames from one encoder frame to the next
    overlap: int  # feature frames beyond its stride that an encoder frame depends on

    @property
    def seconds(self) -> float:
        """From one encoder frame to the next."""
        return self.hop * self.stride / SAMPLE_RATE

    @property
    def features_per_second(self) -> float:
        return SAMPLE_RATE / self.hop

    def features(self, samples: int) -> int:
        """The number of feature frames of a number of samples."""
        return max(0, (samples - self.window) // self.hop + 1)

    def embedded(self, features: int) -> int:
        """The number of encoder frames for a number of feature frames."""
        return max(0, (features - self.overlap) // self.stride)

    def needed(self, frames: int) -> int:
        """The number of feature frames that a number of encoder frames needs."""
        return self.stride * frames + self.overlap

    def needed_samples(self, frames: int) -> int:
        """The number of samples that a number of encoder frames needs."""
        return (self.needed(frames) - 1) * self.hop + self.window

    def milliseconds(self, frames: int) -> float:
        """The time of a number of encoder frames."""
        return round(1000 * self.seconds * frames, 3)

    def frames(self, seconds: float) -> int:
        """The number of encoder frames of a time."""
        return round(min(seconds, FOREVER_SECONDS) / self.seconds)


LOG_MEL = FrameRate(FRAME_SAMPLES, HOP_SAMPLES, stride=4, overlap=3)  # two CNN layers: frame k sees 4k to 4k+6
WAVEFORM = FrameRate(window=64, hop=64, stride=12, overlap=8)  # pairs of states of 24 ms, each of 14 blocks of samples
