"""Builds the search of a model: by label for most mechanisms, by frame for triggered attention, by block for BS-DEC.

The rest of the recogniser uses the `Searcher` protocol: beam and frames in, beam out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from headsync.config import HOTWORD_BOOST, TRIGGER_FRAMES, Config, DecodingConfig
from headsync.decoding.beam import Search
from headsync.decoding.blockwise import BlockwiseSearch
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.hypothesis import Hypothesis, SpeechFrames
from headsync.decoding.lookahead import limit_of
from headsync.decoding.phrase_text import UNKNOWN_WORD
from headsync.decoding.phrase_tree import Spellings, letters_of
from headsync.decoding.phrases import Phrases
from headsync.decoding.published_policy import PublishedSearch
from headsync.decoding.triggered import TriggeredSearch
from headsync.engine import Engine
from headsync.errors import ConfigError, DataError
from headsync.lm import LanguageModel
from headsync.text.bpe import MARK, SUBWORDS
from headsync.text.vocabulary import SPACE, UNKNOWN, Vocabulary


class Texts(Protocol):
    """The protocol of beams; each later hypothesis descends from a live one, or has ended."""

    @property
    def live(self) -> tuple[Hypothesis, ...]: ...

    @property
    def ended(self) -> tuple[Hypothesis, ...]: ...

    @property
    def best(self) -> Hypothesis: ...

    def nbest(self, most: int) -> tuple[Hypothesis, ...]: ...


B = TypeVar("B", bound=Texts)


class Searcher(Protocol[B]):
    """The protocol of searches; immutable, shared by every stream. The beam is a value."""

    @property
    def engine(self) -> Engine: ...

    @property
    def config(self) -> DecodingConfig: ...

    @property
    def phrases(self) -> Phrases | None: ...

    def start(self, trace: bool = False) -> B:
        """The beam of a new utterance; `trace`: its hypotheses record where the heads attended."""

    def advance(self, beam: B, speech: SpeechFrames, final: bool) -> B:
        """Decode the frames so far; `final`: no more will come."""

    def close(self, beam: B, speech: SpeechFrames, frames: int) -> tuple[B, int]:
        """End the utterance after `frames` frames, or later; also returns the number of frames used."""


def build_search(
    engine: Engine,
    config: Config,
    decoding: DecodingConfig,
    vocabulary: Vocabulary,
    lm: LanguageModel | None = None,
    hotwords: Sequence[str | tuple[str, float]] | None = None,
    phrases: Sequence[str] = (),
    threshold: float | None = None,
) -> Searcher[Any]:
    """`hotwords` are phrases to favour, alone or with a boost; `phrases`, if not empty, restricts the text to these."""
    name, end, tree = config.decoder.attention, vocabulary.end, build_hotwords(hotwords or (), vocabulary)
    limit, only = limit_of(name), build_phrases(phrases, vocabulary)
    if name == "triggered":
        if not decoding.ctc_weight:
            raise ConfigError("decoding.ctc_weight = 0 disables CTC, which triggered attention requires")
        return TriggeredSearch(engine, decoding, end, TRIGGER_FRAMES, lm, tree, only)
    if name == "bs-dec":
        return BlockwiseSearch(engine, limit, decoding, end, lm, tree, only, threshold)
    kind = PublishedSearch if decoding.policy == "published" else Search
    return kind(engine, limit, decoding, end, lm, tree, only, threshold, punctuation=vocabulary.punctuation)


def build_hotwords(hotwords: Sequence[str | tuple[str, float]], vocabulary: Vocabulary) -> Hotwords | None:
    """The tree of the phrases in the tokens of a model; None if there are no phrases."""
    if not hotwords:
        return None
    if isinstance(hotwords, str):
        raise ConfigError(f'hotwords = "{hotwords}" must be a list of phrases, not one text')
    given = [_with_boost(one) for one in hotwords]
    phrases = [(_spelt(phrase, vocabulary), boost) for phrase, boost in given]
    places = {token: number for number, token in enumerate(vocabulary.tokens, 1)}  # a vocabulary of words has no space
    if vocabulary.kind in SUBWORDS:
        first = [number for token, number in places.items() if token.startswith(MARK)]
        return Hotwords.build(phrases, vocabulary.size, first=first)
    return Hotwords.build(phrases, vocabulary.size, space=places.get(SPACE))


def build_phrases(phrases: Sequence[str], vocabulary: Vocabulary) -> Phrases | None:
    """The automaton of a phrase list; None if there are no phrases. Equal lists share it."""
    if isinstance(phrases, str) or not all(isinstance(phrase, str) for phrase in phrases):
        raise ConfigError(f'phrases = {phrases!r} must be a list of texts, for example ["yes", "no", "[unk]"]')
    return _compiled(tuple(phrases), vocabulary) if phrases else None


@lru_cache(maxsize=16)
def _compiled(phrases: tuple[str, ...], vocabulary: Vocabulary) -> Phrases:
    spellings = Spellings.of(vocabulary)
    given = [phrase for phrase in phrases if phrase.strip().casefold() != UNKNOWN_WORD]
    words = [_words_of(phrase, spellings) for phrase in given]
    return Phrases.build(words, spellings, unknown=len(given) < len(phrases))


def _words_of(phrase: str, spellings: Spellings) -> list[str]:
    """The words of a phrase in letters."""
    if UNKNOWN_WORD in phrase.casefold():
        raise ConfigError(f'the phrase "{phrase}" is not possible: {UNKNOWN_WORD} must be a phrase by itself')
    words = [letters for word in phrase.split() if (letters := letters_of(word))]
    if not words:
        raise ConfigError(f'the phrase "{phrase}" is empty; it must have at least one letter or digit')
    for n, word in enumerate(words):
        if not spellings.spells(word, first=n == 0):
            raise ConfigError(f'the phrase "{phrase}" is not possible: the vocabulary cannot spell "{word}"')
    return words


def _with_boost(hotword: str | tuple[str, float]) -> tuple[str, float]:
    if isinstance(hotword, str):
        return hotword, HOTWORD_BOOST
    try:
        phrase, boost = hotword
        phrase, boost = str(phrase), float(boost)
    except (TypeError, ValueError):
        raise ConfigError(f"the hotword {hotword!r} must be a phrase, or a phrase and its boost") from None
    if not (boost > 0 and math.isfinite(boost)):
        raise ConfigError(f'the boost {boost} of the hotword "{phrase}" must be finite and more than 0')
    return phrase, boost


def _spelt(phrase: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    words = phrase.split()
    if not words:
        raise ConfigError(f'the hotword "{phrase}" is empty; it must have at least one word')
    strange = [word for word in words if word == UNKNOWN or word not in vocabulary.tokens]
    if vocabulary.kind == "words" and strange:  # <unk> would stand for any word
        raise ConfigError(f'the hotword "{phrase}" is not possible: "{strange[0]}" is not in the vocabulary')
    try:
        return tuple(vocabulary.encode(phrase))
    except DataError as error:
        raise ConfigError(f'the hotword "{phrase}" is not possible: {error}') from None
