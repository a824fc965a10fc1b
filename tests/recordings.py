"""Recordings of digit strings for tests, made like those of the demo (flite 2.2), recognised by `digits-en`."""

from __future__ import annotations

from pathlib import Path

DIGIT_RECORDINGS = Path(__file__).parent / "digit_recordings"
