"""Searches with a phrase list, on random models: only its phrases are printed, whenever the frames arrive."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_engine import TableEngine, nothing_heard, spikes_of
from headsync.config import Config, DecoderConfig, DecodingConfig
from headsync.decoding import scoring
from headsync.decoding.build import build_phrases, build_search
from headsync.decoding.hypothesis import Hypothesis, SpeechFrames
from headsync.decoding.phrase_text import PhraseText, common_prefix
from headsync.decoding.phrases import START, UNFINISHED, Phrases
from headsync.text.vocabulary import Vocabulary
from reference import phrases as literal

PIECES = Vocabulary("bpe", ("▁", "a", "b", "▁a", "▁aB", "ab", ",", "▁-"))
CHARACTERS = Vocabulary("characters", ("<space>", "a", "b", "A", ".", "<cough>"))
WORDS = Vocabulary("words", ("a", "b", "ab", "aa", "--"))
LISTS = (["ab a", "b"], ["a", "a b b", "ab ab"], ["bab"])
FRAMES = 24

SEARCHES = [
    ("hs-dacs", "gated"), ("hs-dacs", "published"), ("mocha", "gated"), ("softmax", "published"),
    ("triggered", "gated"), ("bs-dec", "gated"), ("bs-dec", "published"),
]  # fmt: skip

seeds = st.integers(0, 10_000)
cuts = st.lists(st.integers(1, FRAMES), max_size=5).map(sorted)


def built(vocabulary: Vocabulary, kind: tuple[str, str], phrases: list[str], seed: int, **given: Any) -> Any:
    decoding = DecodingConfig(policy=kind[1], lookahead_frames=4, **given)  # type: ignore[arg-type]
    config = Config(decoder=DecoderConfig(attention=kind[0]))
    search = build_search(TableEngine(seed, vocabulary.size), config, decoding, vocabulary, phrases=phrases)
    return replace(search, most_tokens_per_frame=0.3)


def some_speech(vocabulary: Vocabulary, seed: int, frames: int = FRAMES) -> SpeechFrames:
    p = np.random.default_rng(seed).dirichlet(np.full(vocabulary.size, 0.3), size=frames)
    log_ctc = np.log(0.002 + (1 - 0.002 * vocabulary.size) * p).astype(np.float32)
    return SpeechFrames(nothing_heard(frames), log_ctc, spikes_of(log_ctc))


def check(vocabulary: Vocabulary, phrases: Phrases, h: Hypothesis) -> None:
    """Each token was possible, the state is that of the tokens, and the score is finite."""
    state = START
    for token in h.tokens:
        assert phrases.scores([state])[0, token] > -math.inf
        state = phrases.after(state, token)
    assert h.phrases == state
    assert math.isfinite(h.score)


@pytest.mark.parametrize("vocabulary", [CHARACTERS, PIECES, WORDS], ids=["characters", "pieces", "words"])
@pytest.mark.parametrize("kind", SEARCHES, ids="-".join)
@settings(max_examples=10, deadline=None)
@given(seed=seeds, number=st.integers(0, 2), beam=st.sampled_from([1, 3]), weight=st.sampled_from([0.0, 0.4]),
       unknown=st.booleans(), arrivals=cuts)  # fmt: skip
def test_only_phrases_are_printed_and_what_is_committed_stays(
    vocabulary: Vocabulary, kind: tuple[str, str], seed: int, number: int, beam: int, weight: float, unknown: bool,
    arrivals: list[int],
) -> None:  # fmt: skip
    given = LISTS[number if vocabulary is not WORDS else number % 2]
    weight = weight or (0.4 if kind[0] == "triggered" else 0.0)
    search = built(vocabulary, kind, [*given, "[unk]"] if unknown else given, seed, beam=beam, ctc_weight=weight)
    speech, printed = some_speech(vocabulary, seed), PhraseText(vocabulary, search.phrases)
    beam_now, committed = search.start(), []
    for frames in arrivals:
        beam_now = search.advance(beam_now, speech.up_to(frames), final=False)
        tokens = common_prefix([h.tokens for h in (*beam_now.live, *beam_now.ended)])
        words = [span.text for span in printed.committed(tokens)]
        assert words[: len(committed)] == committed
        committed = words
    ended = search.advance(beam_now, speech, final=True)
    for h in (*ended.live, *ended.ended):
        check(vocabulary, search.phrases, h)
    words = [span.text for span in printed.ended(ended.best.tokens)]
    assert words[: len(committed)] == committed
    phrases = [phrase.split() for phrase in given]
    known = [[]]
    for word in words:
        known = [*known, []] if word == "[unk]" else [*known[:-1], [*known[-1], word]]
    assert all(literal.is_sequence([w for word in part if (w := literal.letters(word))], phrases) for part in known)
    if (kind[0], kind[1]) != ("bs-dec", "published"):
        at_once = search.advance(search.start(), speech, final=True)
        assert (at_once.live, at_once.ended) == (ended.live, ended.ended)


@pytest.mark.parametrize("kind", [("hs-dacs", "gated"), ("hs-dacs", "published")], ids="-".join)
def test_the_tokens_of_phrases_are_always_among_those_scored(
    kind: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder prefers other words to the only one on the list; CTC prefers that one."""
    monkeypatch.setattr(scoring, "PRE_BEAM", 3)
    vocabulary = Vocabulary("words", tuple(f"w{n}" for n in range(50)))
    search = built(vocabulary, kind, ["w7"], 0, beam=2, ctc_weight=0.6)
    log_ctc = np.full((FRAMES, vocabulary.size), -9.0, np.float32)
    log_ctc[:, 0] = -0.01
    log_ctc[5] = -9.0
    log_ctc[5, 8] = -0.01
    speech = SpeechFrames(nothing_heard(FRAMES), log_ctc, spikes_of(log_ctc))
    ended = search.advance(search.start(), speech, final=True)
    assert ended.best.tokens == (8,)
    free = replace(search, phrases=None)
    assert 8 not in free.advance(free.start(), speech, final=True).best.tokens


class Says:
    """Prefers given tokens at frames 3, 6, 9, ..., then <eos>."""

    def __init__(self, vocabulary: Vocabulary, text: tuple[int, ...]) -> None:
        self.vocabulary, self.text = vocabulary, text

    def search(self, phrases: list[str], **given: Any) -> Any:
        config = DecodingConfig(ctc_weight=0.9, **given)
        decoder = Config(decoder=DecoderConfig(attention="hs-dacs"))
        engine = TableEngine(1, self.vocabulary.size)
        search = build_search(engine, decoder, config, self.vocabulary, phrases=phrases)
        return replace(search, most_tokens_per_frame=0.5)

    def speech(self) -> SpeechFrames:
        labels = np.zeros(3 * len(self.text) + 8, np.int64)
        labels[3 : 3 + 3 * len(self.text) : 3] = self.text
        log_ctc = np.full((len(labels), self.vocabulary.size), -12.0, np.float32)
        log_ctc[np.arange(len(labels)), labels] = -0.001
        return SpeechFrames(nothing_heard(len(labels)), log_ctc, spikes_of(log_ctc))

    def printed(self, phrases: list[str], **given: Any) -> str:
        search = self.search(phrases, **given)
        beam = search.advance(search.start(), self.speech(), final=True)
        spans = PhraseText(self.vocabulary, search.phrases).ended(beam.best.tokens)
        return " ".join(span.text for span in spans)


DIGITS = Vocabulary("words", ("one", "two", "three", "four"))


def test_spoken_phrases_of_the_list_are_printed() -> None:
    said = Says(DIGITS, (3, 1, 2))
    assert said.printed(["one two", "three"], beam=4) == "three one two"
    assert said.printed([], beam=4) == "three one two"


def test_speech_that_ends_inside_a_phrase_prints_the_phrases_before_it() -> None:
    """Completing "one two three four" would need three words that were not spoken."""
    assert Says(DIGITS, (3, 1)).printed(["one two three four", "three"], beam=4) == "three"


def test_other_speech_is_unknown() -> None:
    said = Says(DIGITS, (3, 4, 4, 1, 2))
    assert said.printed(["one two", "three", "[unk]"], beam=4) == "three [unk] one two"


def test_an_end_inside_a_phrase_has_a_cost() -> None:
    phrases = build_phrases(["one two"], DIGITS)
    assert phrases is not None
    assert phrases.end_cost(START) == 0.0
    assert phrases.end_cost(phrases.after(START, 1)) == UNFINISHED
