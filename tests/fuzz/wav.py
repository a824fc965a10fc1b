"""WAV files with any header."""

from __future__ import annotations

import struct

import numpy as np


def wav(samples: int, rate: int = 8000, subtype: tuple[int, int] = (1, 16), channels: int = 1) -> bytes:
    """A WAV of a rising tone."""
    tag, bits = subtype
    frame = channels * bits // 8
    body = (np.arange(samples * frame) % 251).astype(np.uint8).tobytes()
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * frame % (1 << 32), frame, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
