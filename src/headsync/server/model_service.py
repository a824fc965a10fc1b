"""A model that the server offers: loaded once, shared by all streams, each with its own decoding settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headsync.decoding.build import build_hotwords
from headsync.errors import ConfigError
from headsync.model_folder import card_languages, card_summary, find_named
from headsync.recognizer import LoadOptions, Recognizer, Session
from headsync.server.base_stream import SessionOptions
from headsync.server.batching import BatchingEngine
from headsync.server.limits import Limits
from headsync.text.vocabulary import Vocabulary

# Settings that a stream may choose; they do not change the network.
STREAM_SETTINGS = (
    "beam", "ctc_weight", "nbest", "lookahead_ms", "threshold", "pause_seconds", "centre_ms", "right_ms",
    "longest_seconds", "silence_seconds",
)  # fmt: skip

PHRASE_CHARS = 200  # longest hotword or phrase; a hotword's tree grows with the square of its length
MAX_LISTED_WORDS = 50  # a longer vocabulary is not listed


@dataclass(frozen=True)
class ModelOptions(LoadOptions):
    """A model to serve; its settings are those of streams that choose none."""

    batching: bool = True


class ModelService:
    """Opens sessions of one model. With batching, all sessions share the network."""

    def __init__(
        self,
        recognizer: Recognizer,
        hotwords: Sequence[tuple[str, float]],
        batching: bool,
        name: str | None = None,
        phrases: Sequence[str] = (),
    ) -> None:
        self.name = name or recognizer.folder.path.resolve().name
        self.created = int(recognizer.folder.weights.stat().st_mtime)
        self.batching = BatchingEngine(recognizer.engine) if batching else None
        self.description = card_summary(recognizer.folder.path)
        self.languages = card_languages(recognizer.folder.path)
        self.vocabulary = _short_word_list(recognizer.vocabulary)
        self._default = recognizer.changed({}, hotwords, engine=self.batching, phrases=phrases)
        self.budget = self._default.budget

    @classmethod
    def load(cls, options: ModelOptions) -> ModelService:
        name = find_named(options.model).name
        return cls(options.load(), options.hotwords, options.batching, name, options.phrases)

    def open_session(self, options: SessionOptions = SessionOptions(), limits: Limits = Limits()) -> Session:  # noqa: B008
        """A new session; raises ConfigError for options that are not allowed."""
        _check_phrases("hotwords", [phrase for phrase, _ in options.hotwords], limits.hotwords)
        _check_phrases("phrases", options.phrases, limits.phrases)
        for name in options.settings:
            if name not in STREAM_SETTINGS:
                raise ConfigError(f"settings: a stream cannot set {name}; it can set {', '.join(STREAM_SETTINGS)}")
        recognizer = self._default.changed(options.settings, options.hotwords or None, "settings")
        decoding = recognizer.search.config
        most = max(decoding.beam, decoding.nbest)
        if options.settings and most > limits.beam:
            raise ConfigError(f"settings: beam and nbest must be at most {limits.beam} on this server")
        return recognizer.session(options.attention, options.phrases or None, beam=most if options.settings else None)

    def can_write(self, phrase: str) -> bool:
        """Whether the vocabulary has the tokens of a phrase, so that it can be a hotword."""
        try:
            return build_hotwords([phrase], self._default.vocabulary) is not None
        except ConfigError:
            return False


def _check_phrases(name: str, phrases: Sequence[str], limit: int) -> None:
    if len(phrases) > limit or any(len(phrase) > PHRASE_CHARS for phrase in phrases):
        raise ConfigError(f"{name}: at most {limit} phrases of at most {PHRASE_CHARS} characters are accepted")


def _short_word_list(vocabulary: Vocabulary) -> list[str] | None:
    """All words of a small word vocabulary; None for others."""
    if vocabulary.kind != "words" or len(vocabulary.tokens) > MAX_LISTED_WORDS:
        return None
    return [token for token in vocabulary.tokens if not token.startswith("<")]
