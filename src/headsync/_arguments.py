"""Keyword arguments of `Recognizer.load` and of its sessions, for type checkers."""

from __future__ import annotations

from typing import Literal, TypedDict


class SearchSettings(TypedDict, total=False):
    """The fields of `DecodingConfig` and `EndpointConfig` as keyword arguments; None: as stored with the model."""

    beam: int | None
    ctc_weight: float | None
    lm_weight: float | None
    lm_use: Literal["fusion", "rescoring"] | None
    length_bonus: float | None
    lookahead_frames: int | None
    policy: Literal["gated", "published"] | None
    token_frames: int | None
    nbest: int | None
    confidence_scale: float | None
    confidence_offset: float | None
    whole_recording: bool | None
    pause_seconds: float | None
    longest_seconds: float | None
    silence_seconds: float | None
    spike_probability: float | None
    onset_probability: float | None


class StreamSettings(SearchSettings, total=False):
    """Settings of one stream: the settings above, and its delay."""

    lookahead_ms: float | None  # M, rounded to encoder frames; instead of `lookahead_frames`
    threshold: float | None  # of each head
    centre_ms: float | None  # the encoder's block, rounded to encoder frames; see `encoder.varied_frames`
    right_ms: float | None  # its right context, likewise
