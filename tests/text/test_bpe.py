"""BPE: pieces learned from texts, and words taken apart as sentencepiece would."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from headsync.config import DataConfig
from headsync.errors import ConfigError, DataError
from headsync.text.bpe import MARK, learn_pieces, learn_unigrams, merged, most_probable
from headsync.text.vocabulary import UNKNOWN, Vocabulary, build_vocabulary

TEXTS = [
    "she sells sea shells by the sea shore", "the shells she sells are sea shells i am sure",
    "so if she sells shells on the sea shore", "then i am sure she sells sea shore shells", "éé éa éé ßé",
]  # fmt: skip
LETTERS = "".join(sorted(set("".join(TEXTS)) - {" "}))
SIZE = 60


@pytest.fixture(scope="module")
def pieces() -> tuple[str, ...]:
    return learn_pieces(TEXTS, SIZE)


@pytest.fixture(scope="module")
def theirs() -> sentencepiece.SentencePieceProcessor:
    """A model by sentencepiece alone."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type="bpe", vocab_size=SIZE + 1, minloglevel=2,
        unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1, character_coverage=1.0, normalization_rule_name="identity",
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def test_the_requested_number_of_pieces_is_learned(pieces: tuple[str, ...]) -> None:
    assert len(pieces) == len(set(pieces)) == SIZE
    assert {*LETTERS, MARK} <= set(pieces)
    assert f"{MARK}sea" in pieces


@given(words=st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=4))
def test_words_are_taken_apart_as_by_sentencepiece(
    pieces: tuple[str, ...], theirs: sentencepiece.SentencePieceProcessor, words: list[str]
) -> None:
    ranks = {piece: number for number, piece in enumerate(pieces)}
    ours = [piece for word in words for piece in merged(MARK + word, ranks)]
    assert ours == theirs.encode(" ".join(words), out_type=str)


@pytest.fixture(scope="module")
def unigrams() -> dict[str, float]:
    return learn_unigrams(TEXTS, SIZE)


@pytest.fixture(scope="module")
def their_unigrams() -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type="unigram", vocab_size=SIZE + 1, minloglevel=2,
        unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1, character_coverage=1.0, normalization_rule_name="identity",
        hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@given(words=st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=4))
def test_a_unigram_model_takes_words_apart_as_sentencepiece(
    unigrams: dict[str, float], their_unigrams: sentencepiece.SentencePieceProcessor, words: list[str]
) -> None:
    ours = [piece for word in words for piece in most_probable(MARK + word, unigrams)]
    assert ours == their_unigrams.encode(" ".join(words), out_type=str)


def test_the_most_probable_pieces_by_hand() -> None:
    scores = {"a": -1.0, "b": -1.0, "ab": -1.5, "ba": -3.0}
    assert most_probable("abab", scores) == ["ab", "ab"]
    assert most_probable("ba", scores) == ["b", "a"]
    assert most_probable("axb", scores) == ["a", "x", "b"]


def test_a_unigram_vocabulary_is_stored_with_its_scores(tmp_path: Path) -> None:
    built = build_vocabulary(DataConfig(tokens="unigram", bpe_size=SIZE), TEXTS)
    assert len(built.tokens) <= SIZE
    assert {*LETTERS, MARK, UNKNOWN} <= {*built.tokens}
    built.save(tmp_path / "vocabulary.json")
    read = Vocabulary.load(tmp_path / "vocabulary.json")
    assert read == built
    assert read.decode(read.encode("she sells sea shells")) == "she sells sea shells"
    assert read.encode("q") == [built.tokens.index(MARK) + 1, built.tokens.index(UNKNOWN) + 1]
    with pytest.raises(DataError, match="every token of a unigram vocabulary has a score"):
        Vocabulary("unigram", ("a", "b"), (0.5,))


def test_pieces_learned_first_are_merged_first_from_the_left() -> None:
    assert merged("aaa", {"aa": 1}) == ["aa", "a"]
    assert merged("abc", {"bc": 1, "ab": 2}) == ["a", "bc"]
    assert merged("abc", {"bc": 2, "ab": 1, "abc": 3}) == ["abc"]
    assert merged("abc", {}) == ["a", "b", "c"]


def test_texts_with_few_pairs_give_fewer_pieces() -> None:
    assert set("ab▁") <= set(learn_pieces(["ab a b ab"], 5000))
    assert len(learn_pieces(["ab a b ab"], 5000)) < 10


def test_long_texts_are_not_skipped() -> None:
    assert "é" in learn_pieces(["ab " * 5000 + "é"], 20)


def test_a_size_below_the_number_of_characters_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.bpe_size = 3 must be at least 4, the characters"):
        learn_pieces(["abc"], 3)


def test_empty_texts_and_texts_with_the_mark_are_errors() -> None:
    with pytest.raises(DataError, match="no text to learn subwords from"):
        learn_pieces([" ", ""], 10)
    with pytest.raises(DataError, match="a text contains '▁'"):
        learn_pieces(["a▁b"], 10)


def test_a_missing_sentencepiece_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ConfigError, match="requires the package sentencepiece"):
        learn_pieces(["abc"], 10)
