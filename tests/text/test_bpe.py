"""BPE: pieces learned from texts, and words taken apart as sentencepiece would."""

from __future__ import annotations

import io
import sys

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from headsync.errors import ConfigError, DataError
from headsync.text.bpe import MARK, learn_pieces, merged

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
