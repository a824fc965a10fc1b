"""The ratios of samples, feature frames, encoder frames and seconds, shared by all stages."""

from __future__ import annotations

NUM_MEL, NUM_PITCH = 80, 3  # columns of features
FRAME_SAMPLES, HOP_SAMPLES = 400, 160  # of 16 kHz: a feature frame of 25 ms every 10 ms

SUBSAMPLING = 4  # feature frames in an encoder frame: two CNN layers of stride 2
OVERLAP_FRAMES = 3  # output k of the CNN sees feature frames 4k to 4k+6
ENCODER_FRAME_SECONDS = 0.04


def embedded_frames(feature_frames: int) -> int:
    """The number of encoder frames for a number of feature frames."""
    return max(0, (feature_frames - OVERLAP_FRAMES) // SUBSAMPLING)


def needed_features(encoder_frames: int) -> int:
    """The number of feature frames that a number of encoder frames needs."""
    return SUBSAMPLING * encoder_frames + OVERLAP_FRAMES
