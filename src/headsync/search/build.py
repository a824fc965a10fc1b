"""Which search a model is searched with: most by label, triggered attention by frame, BS-DEC by block.

The rest of the recogniser sees a `Searcher` alone: a beam in, the frames so far, and a beam out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from headsync.config import HOTWORD_BOOST, Config, DecodingConfig
from headsync.engine import Engine
from headsync.errors import ConfigError, DataError, nearest_name
from headsync.pieces import MARK
from headsync.search.beam import Search
from headsync.search.blockwise import BlockwiseSearch
from headsync.search.hotwords import Hotwords
from headsync.search.hypothesis import Heard, Hypothesis
from headsync.search.policy import POLICIES, frames_ahead
from headsync.search.scorers import LanguageModel
from headsync.search.triggered import TriggeredSearch
from headsync.tokens import SPACE, UNKNOWN, Vocabulary


class Texts(Protocol):
    """What can be seen of any beam; every later one descends from the texts that are live or have ended."""

    @property
    def live(self) -> tuple[Hypothesis, ...]: ...

    @property
    def ended(self) -> tuple[Hypothesis, ...]: ...

    @property
    def best(self) -> Hypothesis: ...

    def nbest(self, most: int) -> tuple[Hypothesis, ...]: ...


B = TypeVar("B", bound=Texts)


class Searcher(Protocol[B]):
    """A search; immutable, shared by every stream, its beam a value."""

    @property
    def engine(self) -> Engine: ...

    @property
    def config(self) -> DecodingConfig: ...

    def start(self, looking: bool = False) -> B:
        """The beam of an utterance; `looking`: its hypotheses are to tell where the heads looked."""

    def advance(self, beam: B, heard: Heard, final: bool) -> B:
        """All that can be written on the frames that there are; `final`: no more will come."""

    def close(self, beam: B, heard: Heard, frames: int) -> tuple[B, int]:
        """All that is written when silence ends an utterance of so many frames; and how many it takes, or all."""


def build_search(
    engine: Engine,
    config: Config,
    decoding: DecodingConfig,
    vocabulary: Vocabulary,
    lm: LanguageModel | None = None,
    hotwords: Sequence[str | tuple[str, float]] | None = None,
) -> Searcher[Any]:
    """The search that fits the attention of a model; hotwords are phrases, each with its boost."""
    name, end, tree = config.decoder.attention, vocabulary.end, build_hotwords(hotwords or (), vocabulary)
    if name not in POLICIES:
        raise nearest_name("decoder.attention =", name, POLICIES)
    ahead = frames_ahead(config.decoder, decoding)
    if name == "triggered":
        if not decoding.ctc_weight:
            raise ConfigError("decoding.ctc_weight = 0 leaves triggered attention without CTC, which drives its search")
        return TriggeredSearch(engine, decoding, end, ahead, lm, tree)
    kind = BlockwiseSearch if name == "bs-dec" else Search
    return kind(engine, POLICIES[name], decoding, end, lm, tree, ahead)


def build_hotwords(hotwords: Sequence[str | tuple[str, float]], vocabulary: Vocabulary) -> Hotwords | None:
    """The tree of the phrases, spelt with the tokens of a model; None where there are none."""
    if not hotwords:
        return None
    if isinstance(hotwords, str):
        raise ConfigError(f'hotwords = "{hotwords}" must be a list of phrases')
    given = [_with_boost(one) for one in hotwords]
    phrases = [(_spelt(phrase, vocabulary), _boost(phrase, boost)) for phrase, boost in given]
    places = {token: number for number, token in enumerate(vocabulary.tokens, 1)}  # words have no space among them
    if vocabulary.kind == "bpe":
        first = [number for token, number in places.items() if token.startswith(MARK)]
        return Hotwords.build(phrases, vocabulary.size, first=first)
    return Hotwords.build(phrases, vocabulary.size, space=places.get(SPACE))


def _with_boost(hotword: str | tuple[str, float]) -> tuple[str, float]:
    if isinstance(hotword, str):
        return hotword, HOTWORD_BOOST
    try:
        phrase, boost = hotword
        return str(phrase), float(boost)
    except (TypeError, ValueError):
        raise ConfigError(f"the hotword {hotword!r} must be a phrase, or a phrase and its boost") from None


def _spelt(phrase: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    words = phrase.split()
    if not words:
        raise ConfigError(f'the hotword "{phrase}" is empty; it must have at least one word')
    strange = [word for word in words if word == UNKNOWN or word not in vocabulary.tokens]
    if vocabulary.kind == "words" and strange:  # not even where "<unk>" stands for other words: it would mean them all
        raise ConfigError(f'the hotword "{phrase}" cannot be written: the model does not know the word "{strange[0]}"')
    try:
        return tuple(vocabulary.encode(phrase))
    except DataError as error:
        raise ConfigError(f'the hotword "{phrase}" cannot be written: {error}') from None


def _boost(phrase: str, boost: float) -> float:
    if not (boost > 0 and math.isfinite(boost)):
        raise ConfigError(f'the boost {boost} of the hotword "{phrase}" must be a number above 0')
    return boost
