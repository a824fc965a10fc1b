"""The search of each model, and the spelling of hotwords."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fakes_engine import TableEngine
from headsync.attention import MECHANISMS
from headsync.config import (
    HOTWORD_BOOST,
    TRIGGER_FRAMES,
    Config,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    EndpointConfig,
    NetworkConfig,
)
from headsync.decoding.beam import Search
from headsync.decoding.blockwise import BlockwiseSearch
from headsync.decoding.build import build_hotwords, build_search
from headsync.decoding.decoder_stream import DecoderStream
from headsync.decoding.encoder_stream import EncoderStream
from headsync.decoding.hotwords import Hotwords
from headsync.decoding.lookahead import LIMITS
from headsync.decoding.triggered import TriggeredSearch
from headsync.endpointing.endpointer import Endpointer
from headsync.engine.torch import TorchEngine
from headsync.errors import ConfigError
from headsync.events import Event, Final
from headsync.frontend.features import NUM_MEL, Statistics
from headsync.nn.model import Model
from headsync.text.vocabulary import Vocabulary
from random_weights import scrambled

CHARACTERS = Vocabulary("characters", ("<space>", "a", "b", "c"))
PIECES = Vocabulary("bpe", ("▁", "a", "b", "c", "▁a", "▁ab", "bc"))
WORDS = Vocabulary("words", ("<unk>", "one", "two"))


def built(attention: str, **settings: float) -> object:
    config = Config(decoder=DecoderConfig(attention=attention))
    return build_search(TableEngine(0), config, DecodingConfig(lookahead_frames=5, **settings), CHARACTERS)


@pytest.mark.parametrize("attention", MECHANISMS)
def test_every_mechanism_has_its_search(attention: str) -> None:
    searching = built(attention, beam=3)
    kinds = {"triggered": TriggeredSearch, "bs-dec": BlockwiseSearch}
    assert type(searching) is kinds.get(attention, Search)
    assert (searching.config.beam, searching.end) == (3, 5)  # type: ignore[attr-defined]
    if isinstance(searching, TriggeredSearch):
        assert searching.ahead == TRIGGER_FRAMES
    if type(searching) is Search:
        assert searching.limit is LIMITS[attention]


def test_all_arguments_reach_the_search() -> None:
    class Model:
        pass

    for attention in ("hs-dacs", "triggered", "bs-dec"):
        engine, lm = TableEngine(0), Model()
        config, decoding = Config(decoder=DecoderConfig(attention=attention)), DecodingConfig(beam=2)
        searching = build_search(engine, config, decoding, CHARACTERS, lm, [("ab", 2.0)])  # type: ignore[arg-type]
        assert searching.engine is engine
        assert searching.config is decoding
        assert searching.language is lm  # type: ignore[attr-defined]
        assert isinstance(searching.hotwords, Hotwords)  # type: ignore[attr-defined]


def test_an_unknown_mechanism_is_an_error() -> None:
    with pytest.raises(ConfigError, match='"hsdacs" is not known; did you mean "hs-dacs"'):
        built("hsdacs")


def test_triggered_attention_needs_ctc() -> None:
    with pytest.raises(ConfigError, match="ctc_weight = 0"):
        built("triggered", ctc_weight=0.0)
    built("bs-dec", ctc_weight=0.0)


def total(hotwords: Hotwords | None, tokens: tuple[int, ...]) -> float:
    """The score of a whole text."""
    assert hotwords is not None
    node, earned = 0, 0.0
    for token in (*tokens, hotwords.size - 1):
        earned += float(hotwords.scores([node])[0, token])
        node = hotwords.after(node, token)
    return earned


@pytest.mark.parametrize(("vocabulary", "phrase", "texts"), [
    (CHARACTERS, "ab", {"ab": 1, "c ab c": 1, "ab ab": 2, "cab": 0, "abc": 0, "a b": 0}),
    (CHARACTERS, " b  a ", {"b a": 1, "b a b a": 2, "b ac": 0, "ba": 0}),
    (PIECES, "ab", {"ab": 1, "c ab c": 1, "ab ab": 2, "cab": 0, "abc": 0, "a b": 0}),
    (WORDS, "one two", {"one two": 1, "two one two": 1, "one two one two": 2, "two one": 0}),
    (Vocabulary("characters", ("a", "b", "c")), "ab", {"ab": 1, "cabc": 1, "abab": 2, "acb": 0}),
])  # fmt: skip
def test_a_phrase_is_found_as_whole_words(vocabulary: Vocabulary, phrase: str, texts: dict[str, int]) -> None:
    hotwords = build_hotwords([(phrase, 3.0)], vocabulary)
    for text, times in texts.items():
        assert total(hotwords, tuple(vocabulary.encode(text))) == pytest.approx(3.0 * times), text


def test_several_phrases_and_none() -> None:
    hotwords = build_hotwords([("ab", 3.0), ("c", 1.5)], CHARACTERS)
    assert total(hotwords, tuple(CHARACTERS.encode("c ab c"))) == pytest.approx(6.0)
    assert build_hotwords([], CHARACTERS) is None
    assert build_search(TableEngine(0), Config(), DecodingConfig(), CHARACTERS).hotwords is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("vocabulary", "phrase", "missing"), [
    (CHARACTERS, "a zebra", "'z'"),
    (PIECES, "a zebra", "'z'"),
    (WORDS, "one three", '"three"'),
    (WORDS, "one <unk>", '"<unk>"'),
    (Vocabulary("words", ("one", "two")), "three", '"three"'),
    (Vocabulary("characters", ("a", "b")), "a b", "'<space>'"),
])  # fmt: skip
def test_a_phrase_that_cannot_be_spelt_is_an_error(vocabulary: Vocabulary, phrase: str, missing: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_hotwords([("ab" if vocabulary.kind != "words" else "one", 1.0), (phrase, 1.0)], vocabulary)
    assert f'the hotword "{phrase}" is not possible' in str(caught.value)
    assert missing in str(caught.value)


@pytest.mark.parametrize("phrase", ["", "  ", "\n"])
def test_an_empty_phrase_is_an_error(phrase: str) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        build_hotwords([(phrase, 1.0)], CHARACTERS)


def test_a_phrase_may_come_without_a_boost() -> None:
    assert total(build_hotwords(["ab"], CHARACTERS), CHARACTERS.encode("ab")) == HOTWORD_BOOST


@pytest.mark.parametrize("wrong", ["ab", [("ab", "much")], [3], [("ab", 1.0, 2.0)]])
def test_a_value_that_is_not_a_list_of_phrases_is_an_error(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"hotword.* must be a "):
        build_hotwords(wrong, CHARACTERS)


@pytest.mark.parametrize("boost", [0.0, -1.0, float("nan"), float("inf")])
def test_a_boost_is_a_number_above_0(boost: float) -> None:
    with pytest.raises(ConfigError, match=r'the boost .* of the hotword "ab" must be finite and more than 0'):
        build_hotwords([("ab", boost)], CHARACTERS)


# through a network


def events_of(searching: Any, network: TorchEngine, encoder: EncoderConfig, sizes: list[int]) -> list[Event]:
    """The events if features arrive in chunks of the given sizes, and then the rest."""
    features = np.random.default_rng(1).normal(size=(300, NUM_MEL))
    features[140:170] *= 0.01
    statistics = Statistics(np.zeros(NUM_MEL, np.float32), np.ones(NUM_MEL, np.float32))
    blocks, events, first = EncoderStream.start(network, encoder, statistics), [], 0
    now = DecoderStream.start(searching, Endpointer(EndpointConfig(0.2, 1.6)), CHARACTERS)
    for size in (*sizes, len(features)):
        arrived, first = features[first : first + size], first + size
        blocks = blocks.push(arrived)
        while (block := (found := blocks.next_block(first >= len(features)))[0]) is not None:
            blocks = found[1]
            told, now = now.push(block)
            events += told
    return events + now.finish(3.0)


@pytest.mark.parametrize("attention", ["triggered", "bs-dec", "bs-dec, published"])
def test_with_the_encoder_s_block_as_the_clock_no_cutting_changes_anything(attention: str) -> None:
    name, _, rules = attention.partition(", ")
    config = Config(
        network=NetworkConfig(width=16, heads=2, feedforward=16, kernels=4),
        encoder=EncoderConfig(2, left_frames=5, centre_frames=5, right_frames=2),
        decoder=DecoderConfig(2, name),
    )
    decoding = DecodingConfig(
        beam=3, policy=rules or "gated", lookahead_frames=4, length_bonus=2.0,
    )  # type: ignore[arg-type]  # fmt: skip
    network = TorchEngine(scrambled(Model(config, NUM_MEL, CHARACTERS.size)))
    searching = build_search(network, config, decoding, CHARACTERS, hotwords=[("ab", 1.0)])
    searching = replace(searching, most_tokens_per_frame=0.3)
    whole = events_of(searching, network, config.encoder, [])
    for sizes in ([7] * 40, [100, 1, 60]):
        assert events_of(searching, network, config.encoder, sizes) == whole
    assert any(isinstance(event, Final) and len(event.text) > 2 for event in whole)
