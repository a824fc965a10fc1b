"""A model that a server offers: loaded once, shared by all streams, each of which may search it in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headsync.config import DecodingConfig
from headsync.engine import Engine
from headsync.errors import ConfigError
from headsync.recipe import build
from headsync.recognizer import Recognizer, Session
from headsync.server.batching import Batching
from headsync.server.limits import Limits
from headsync.server.wishes import Wishes

# What a stream may choose for itself; the network stays the same.
SETTINGS = ("beam", "ctc_weight", "nbest", "trailing_seconds", "longest_seconds", "silence_seconds")


@dataclass(frozen=True)
class ModelChoice:
    """Which model is to be served, and how it is searched unless a stream asks for something else."""

    model: str | None = None
    lm: Path | None = None
    hotwords: tuple[tuple[str, float], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()  # of `DecodingConfig`; None means as stored with the model
    threads: int = 1
    batching: bool = True
    engine: str = "auto"


class Service:
    """A recogniser whose streams go through the network together."""

    def __init__(self, recognizer: Recognizer, hotwords: Sequence[tuple[str, float]], batching: bool) -> None:
        self.name = recognizer.folder.path.resolve().name
        self.created = int(recognizer.folder.weights.stat().st_mtime)
        self.batching = Batching(recognizer.engine) if batching else None
        self._hotwords = hotwords
        self._decoding = recognizer.search.config
        self._language = getattr(recognizer.search, "language", None)
        self._folder = recognizer.folder
        self._engine: Engine = self.batching or recognizer.engine
        self._usual = self._recognizer(self._decoding, hotwords)

    @classmethod
    def load(cls, choice: ModelChoice) -> Service:
        recognizer = Recognizer.load(
            choice.model,
            threads=choice.threads,
            engine=choice.engine,
            lm=choice.lm,
            hotwords=choice.hotwords,
            **dict(choice.settings),
        )
        return cls(recognizer, choice.hotwords, choice.batching)

    def session(self, wishes: Wishes = Wishes(), limits: Limits = Limits()) -> Session:  # noqa: B008
        """A new stream; a ConfigError says what of its wishes cannot be."""
        recognizer = self._usual
        if wishes.settings or wishes.hotwords:
            recognizer = self._recognizer(self._chosen(wishes.settings, limits), wishes.hotwords or self._hotwords)
        return recognizer.session(wishes.attention)

    def _chosen(self, settings: Mapping[str, Any], limits: Limits) -> DecodingConfig:
        for name in settings:
            if name not in SETTINGS:
                raise ConfigError(f"settings: {name} cannot be chosen for a stream; these can: {', '.join(SETTINGS)}")
        decoding = build(DecodingConfig, {**asdict(self._decoding), **settings}, "settings")
        if max(decoding.beam, decoding.nbest) > limits.beam:
            raise ConfigError(f"settings: beam and nbest may be {limits.beam} at most here")
        return replace(decoding, beam=max(decoding.beam, decoding.nbest))

    def _recognizer(self, decoding: DecodingConfig, hotwords: Sequence[tuple[str, float]]) -> Recognizer:
        return Recognizer(self._folder, self._engine, decoding, self._language, hotwords)
