"""headsync: streaming speech recognition with online attention.

    >>> import headsync
    >>> recognizer = headsync.Recognizer.load()
    >>> with recognizer.session() as session:
    ...     for chunk in microphone:
    ...         for event in session.push(chunk, sample_rate=16_000):
    ...             print(event)
    ...     print(session.finish())

Start reading at `headsync.recognizer`.
"""

from __future__ import annotations

from headsync.async_session import AsyncSession
from headsync.errors import AudioError, ConfigError, DataError, HeadsyncError, ModelError, TrainingError
from headsync.events import Alternative, Attention, Endpoint, Event, Final, Partial, Word
from headsync.frontend.audio import read_audio
from headsync.model_folder import shipped as shipped_models
from headsync.recognizer import Recognizer, Session

__all__ = [
    "Alternative",
    "AsyncSession",
    "Attention",
    "AudioError",
    "ConfigError",
    "DataError",
    "Endpoint",
    "Event",
    "Final",
    "HeadsyncError",
    "ModelError",
    "Partial",
    "Recognizer",
    "Session",
    "TrainingError",
    "Word",
    "__version__",
    "read_audio",
    "shipped_models",
]

__version__ = "0.1.0"
